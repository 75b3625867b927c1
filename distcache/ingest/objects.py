"""Inputs in a bucket or a stream, through a directory of files.

Making a corpus reads inputs more than once. So objects are fetched first, each once for all ranks.
Standard input, and whatever else can be read once only, becomes a file too. Each command has a
directory, named by what is asked for: run again, it continues with what is there.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import glob
import itertools
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import xxhash

from distcache.corpus import bin_path, idx_path
from distcache.corpus.loss import loss_path
from distcache.corpus.receipt import receipt_path
from distcache.errors import (
    AccessDenied,
    ConfigError,
    DistcacheError,
    NotReady,
    ObjectChanged,
    StorageError,
)
from distcache.ingest.inputs import files_beside, is_read
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
FIRST_OF_KEY: Final = 3  # among the parts of a URL
FETCHED_AT_ONCE: Final = 4  # objects that a rank fetches at a time


class Fetched(msgspec.Struct, frozen=True):
    """An object that is fetched."""

    url: str  # name of the object
    version: FileVersion  # version of the object
    path: str  # path of its file


class ObjectWork:
    """The files of one command; without URLs there are none, and nothing is done.

    Attributes
    ----------
    names : dict of str to str
        URL, or standard input, of which each file, or a corpus, is a copy.

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
        self.names: dict[str, str] = {}
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

    def inputs(
        self, words: Sequence[str], known: set[str] | None = None, given: str | None = None
    ) -> list[str]:
        """Return inputs with a file instead of every object and stream. Collective.

        A URL that ends with a slash means the objects below it that a directory would yield.

        Parameters
        ----------
        words : sequence of str
            Arguments of the command line.
        known : set of str or None
            Suffixes of files that a directory yields; None for all.
        given : str or None
            The format of all inputs, whatever their names.

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
            found = [_below(word, known) if is_url(word) else [word] for word in spooled]
            urls = [url for some in found for url in some if is_url(url)]
            beside = files_beside(urls, given)
            own = [[word for word in some if word not in beside] for some in found]
            return [*own, self._existing(beside)]

        kind = list[list[str]]
        *found, beside = on_rank_0(self._communicator, find, kind, "looking for objects")
        urls = [url for group in found for url in group if is_url(url)]
        files = self._fetch(urls + beside)
        self.names |= {path: url for url, path in files.items()}
        return [files.get(url, url) for group in found for url in group]

    def _existing(self, beside: Sequence[str]) -> list[str]:
        """Return which files beside inputs exist; what an earlier run has of others is removed."""

        def look(url: str) -> bool:
            try:
                found = exists(url)
            except AccessDenied:  # which a store may answer for what is not there, too
                self._progress.note(f"{url}: access is denied; continues without it")
                found = False
            if not found:
                self._path_of(url).unlink(missing_ok=True)
            return found

        there = map_in_threads(look, beside, FETCHED_AT_ONCE)
        return [url for url, found in zip(beside, there, strict=True) if found]

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
        # An input is known by its name, size and time: here the time is its content's.
        os.utime(part, ns=(0, digest.intdigest() % (1 << 62)))
        os.replace(part, found)
        self.names[str(found)] = "standard input" if word == STDIN else word
        return str(found)

    def corpora(self, prefixes: Sequence[str]) -> list[str]:
        """Return prefixes of corpora, with files instead of objects. Collective.

        Raises
        ------
        DistcacheError
            On all ranks the same.
        """
        remote = [prefix for prefix in prefixes if is_url(prefix)]
        if not remote:
            return list(prefixes)

        def find() -> list[str]:
            beside = [path(p) for p in remote for path in (receipt_path, loss_path)]
            corpora = [path(p) for p in remote for path in (idx_path, bin_path)]
            return corpora + self._existing(beside)

        urls = on_rank_0(self._communicator, find, list[str], "looking for corpora")
        files = self._fetch(urls)
        own = {p: files[idx_path(p)].removesuffix(".idx") for p in remote}
        self.names |= {path: url for url, path in own.items()}
        return [own.get(prefix, prefix) for prefix in prefixes]

    @contextlib.contextmanager
    def naming(self) -> Iterator[None]:
        """Have errors name what the files are copies of."""
        try:
            yield
        except DistcacheError as error:
            for path, name in self.names.items():
                error.problems = tuple(text.replace(path, name) for text in error.problems)
            raise

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
        return Fetched(url, version_at(url), str(self._path_of(url)))

    def _path_of(self, url: str) -> Path:
        parent, _, name = url.rpartition("/")
        return self._root / f"in-{xxhash.xxh3_64_hexdigest(parent.encode())}" / name


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
                stream.flush()
                os.utime(stream.fileno(), ns=(0, _time_of(found.version)))
        except ObjectChanged as error:
            raise StorageError(found.url, "was replaced while it was fetched; run again") from error
        with atomic_write(version) as stream:
            stream.write(wanted)


def _time_of(version: FileVersion) -> int:
    """Return the time of a copy, by which a command that runs again knows it: of each its own."""
    seconds = version.modified // 1_000_000_000
    return seconds * 1_000_000_000 + xxhash.xxh3_64_intdigest(version.tag.encode()) % 1_000_000_000


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
        If there are none below a directory, or none that a pattern matches.
    """
    # A name may have brackets, and none has a question mark.
    if glob.has_magic(url) and ("?" in url or not exists(url)):
        return _matching(url)
    if not url.endswith("/"):
        return [located(url)]
    seen: list[str] = []

    def wanted(name: str) -> bool:
        seen.append(name)
        return is_read(name, known)

    found = list(bucket_of(url).objects_below(url, wanted))
    if not seen:
        raise NotReady(f"{url}: there are no objects below it")
    if not found:
        few = "is hidden" if known is None else "has a known suffix; name the format with --format"
        none = "all" if known is None else "none"
        raise NotReady(f"{url}: of {len(seen)} objects below it {none} {few}")
    return found


def _matching(url: str) -> list[str]:
    """Return the objects that a pattern matches: ``*`` within a name, ``**`` over directories.

    Raises
    ------
    NotReady
        If there are none.
    ConfigError
        If the bucket is a pattern.
    """
    parts = url.split("/")
    first = next(place for place, part in enumerate(parts) if glob.has_magic(part))
    if first < FIRST_OF_KEY:
        raise ConfigError(f"{url}: a pattern may be in the key of objects, not in the bucket")
    above = "/".join(parts[:first]) + "/"
    patterns = tuple(parts[first:])
    found = bucket_of(above).objects_below(above, lambda n: _matches((*n.split("/"),), patterns))
    if not found:
        raise NotReady(f"{url}: matches no object below {above}")
    return list(found)


@functools.lru_cache(1 << 12)
def _matches(parts: tuple[str, ...], patterns: tuple[str, ...]) -> bool:
    """Return whether the parts of a path match those of a pattern; what is hidden is named."""
    if not patterns or (not parts and patterns[0] != "**"):
        return not patterns and not parts
    if patterns[0] == "**":
        visible = itertools.takewhile(lambda part: not part.startswith("."), parts)
        places = range(len(list(visible)) + 1)
        return any(_matches(parts[place:], patterns[1:]) for place in places)
    hidden = parts[0].startswith(".") and not patterns[0].startswith(".")
    fits = fnmatch.fnmatchcase(parts[0], patterns[0])
    return fits and not hidden and _matches(parts[1:], patterns[1:])
