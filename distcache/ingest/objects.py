"""Inputs in a bucket or a stream, through a directory of files.

Making a corpus reads inputs more than once. So objects are fetched first, each once for all ranks.
Standard input, and whatever else can be read once only, becomes a file too. Each command has a
directory, named by what is asked for: run again, it continues with what is there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import xxhash

from distcache.corpus import bin_path, idx_path
from distcache.corpus.receipt import receipt_path
from distcache.errors import ConfigError, NotReady, ObjectChanged, StorageError
from distcache.ingest.inputs import is_read
from distcache.ranks.agreement import on_all_ranks, on_rank_0, own_share
from distcache.ranks.communicator import Communicator
from distcache.ranks.progress import Progress
from distcache.ranks.sending import PER_OBJECT
from distcache.storage.files import FileVersion, atomic_write, make_directories, may_write
from distcache.storage.locks import LOCK, try_lock
from distcache.storage.place import (
    PIECE_BYTES,
    bucket_of,
    exists,
    open_place,
    pieces_of,
    version_at,
)
from distcache.storage.threads import map_in_threads
from distcache.storage.url import is_url, located
from distcache.storage.watchdog import tick

STDIN: Final = "-"
FETCHED_AT_ONCE: Final = 4  # objects that a rank fetches at a time


class Fetched(msgspec.Struct, frozen=True):
    """An object that is fetched."""

    url: str  # name of the object
    version: FileVersion  # version of the object
    path: str  # path of its file


class ObjectWork:
    """The files of one command; without URLs there are none, and nothing is done.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks.
    directory : str
        Directory that all ranks share; the command has a directory below it.
    asked : sequence of str
        Inputs and outputs of the command, which name its directory.
    progress : Progress
        Receiver of the bytes that are fetched.
    """

    def __init__(
        self,
        communicator: Communicator,
        directory: str,
        asked: Sequence[str],
        progress: Progress,
    ) -> None:
        self._communicator = communicator
        name = xxhash.xxh3_64_hexdigest("\0".join(asked).encode("utf-8", "surrogateescape"))
        self._root = Path(os.path.abspath(directory)) / name
        self._progress = progress
        self._lock: int | None = None
        if any(is_url(word) or is_stream(word) for word in asked):
            on_rank_0(communicator, self._make, None, "making a directory")

    def _make(self) -> None:
        """Make the directory, and keep others out of it.

        Raises
        ------
        ConfigError
            If another job does the same.
        """
        with may_write(self._root.parent, "choose another --work"):
            make_directories(self._root)
            self._lock = try_lock(self._root / LOCK)
        if self._lock is None:
            raise ConfigError(f"{self._root}: in use by another job; wait until it finishes")

    def inputs(self, words: Sequence[str], known: set[str] | None = None) -> list[str]:
        """Return inputs with a file in the place of every object and stream. Collective.

        A URL that ends with a slash means the objects below it that a directory would yield.

        Parameters
        ----------
        words : sequence of str
            Arguments of the command line.
        known : set of str or None
            Suffixes of files that a directory yields; None for all.

        Raises
        ------
        NotReady
            If there is none.
        DistcacheError
            On all ranks the same.
        """
        if not any(is_url(word) or is_stream(word) for word in words):
            return list(words)

        def find() -> list[list[str]]:
            spooled = [self._spooled(word) if is_stream(word) else word for word in words]
            return [_below(word, known) if is_url(word) else [word] for word in spooled]

        found = on_rank_0(self._communicator, find, list[list[str]], "looking for objects")
        urls = [url for group in found for url in group if is_url(url)]
        files = self._fetch(urls)
        return [files.get(url, url) for group in found for url in group]

    def _spooled(self, word: str) -> str:
        """Copy a stream to a file that is named by its content, so that the same is found again."""
        self._progress.note(f"reading {'standard input' if word == STDIN else word}")
        digest = xxhash.xxh3_128()
        part = self._root / "stream"
        with contextlib.ExitStack() as stack:
            source = sys.stdin.buffer if word == STDIN else stack.enter_context(open(word, "rb"))
            copy = stack.enter_context(open(part, "wb"))
            while block := source.read(PIECE_BYTES):
                tick()
                digest.update(block)
                copy.write(block)
        found = part.with_name(f"stream-{digest.hexdigest()}")
        os.utime(part, (0, 0))  # an input is known by path, size and time
        os.replace(part, found)
        return str(found)

    def corpora(self, prefixes: Sequence[str]) -> list[str]:
        """Return prefixes of corpora, with files in the place of objects. Collective.

        Raises
        ------
        DistcacheError
            On all ranks the same.
        """
        remote = [prefix for prefix in prefixes if is_url(prefix)]
        if not remote:
            return list(prefixes)

        def find() -> list[str]:
            receipts = [receipt_path(p) for p in remote if exists(receipt_path(p))]
            return [path(p) for p in remote for path in (idx_path, bin_path)] + receipts

        urls = on_rank_0(self._communicator, find, list[str], "looking for corpora")
        files = self._fetch(urls)
        return [files[idx_path(p)].removesuffix(".idx") if is_url(p) else p for p in prefixes]

    def remove(self) -> None:
        """Remove the files when the corpora are made. Collective."""
        on_rank_0(self._communicator, self._remove, None, "removing local files")

    def _remove(self) -> None:
        """Remove what this command has made: it is not needed any more."""
        if self._lock is not None:
            shutil.rmtree(self._root, ignore_errors=True)
            os.close(self._lock)
            self._lock = None

    def _fetch(self, urls: Sequence[str]) -> dict[str, str]:
        """Fetch objects, each by one rank, and return the file of each. Collective."""
        objects = fetch_objects(
            self._communicator,
            lambda: [self._place(url) for url in dict.fromkeys(urls)],
            self._progress,
        )
        return {found.url: found.path for found in objects}

    def _place(self, url: str) -> Fetched:
        """Return where an object goes: files of a corpus are beside one another."""
        version = version_at(url)
        parent = xxhash.xxh3_64_hexdigest(url.rpartition("/")[0].encode())
        return Fetched(url, version, str(self._root / f"in-{parent}" / url.rpartition("/")[2]))


def fetch_objects(
    communicator: Communicator, find: Callable[[], list[Fetched]], progress: Progress
) -> list[Fetched]:
    """Fetch objects, each by one rank, and return them with their files. Collective.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks.
    find : callable
        Called on rank 0; returns the objects.
    progress : Progress
        Receiver of the bytes.

    Raises
    ------
    DistcacheError
        On all ranks the same.
    """
    objects = on_rank_0(communicator, find, list[Fetched], "looking for objects")
    progress.phase("fetching", sum(found.version.size for found in objects))
    costs = [PER_OBJECT + found.version.size for found in objects]
    own = own_share(communicator, objects, costs)

    def fetch() -> None:
        map_in_threads(lambda found: _copy(found, progress), own, FETCHED_AT_ONCE)

    on_all_ranks(communicator, fetch, "fetching")
    return objects


def _copy(found: Fetched, progress: Progress) -> None:
    """Fetch an object, unless an earlier run has: then its version is beside the file."""
    path = Path(found.path)
    version = path.with_name(f".{path.name}.version")
    wanted = msgspec.json.encode(found.version)
    with may_write(path.parent, "choose another directory"):
        make_directories(path.parent)
        whole = path.is_file() and path.stat().st_size == found.version.size
        if whole and version.exists() and version.read_bytes() == wanted:
            progress.advance(found.version.size)
            return
        try:
            with open_place(found.url, found.version) as place, atomic_write(path) as stream:
                for piece in pieces_of(place, 0, found.version.size, PIECE_BYTES):
                    stream.write(piece.data)
                    progress.advance(piece.size)
        except ObjectChanged as error:
            raise StorageError(found.url, "was replaced while it was fetched; run again") from error
        with atomic_write(version) as stream:
            stream.write(wanted)


def is_stream(word: str) -> bool:
    """Return whether an input is standard input, a pipe or a device: it can be read once only."""
    if word == STDIN:
        return True
    try:
        mode = os.stat(word).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def _below(url: str, known: set[str] | None) -> list[str]:
    """Return the objects that a URL means.

    Raises
    ------
    NotReady
        If there are none below a directory.
    """
    if not url.endswith("/"):
        return [located(url)]
    names = list(bucket_of(url).objects_below(url))
    found = [name for name in names if is_read(name.removeprefix(url), known)]
    if not found:
        if not names:
            raise NotReady(f"{url}: there are no objects below it")
        few = "is hidden" if known is None else "has a known suffix; name the format with --format"
        none = "all" if known is None else "none"
        raise NotReady(f"{url}: of {len(names)} objects below it {none} {few}")
    return found
