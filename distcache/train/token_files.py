"""Where the tokens of a corpus are, and the open files of a process, opened with retries.

They are read, not mapped: a read returns an error of the filesystem, where a mapping raises SIGBUS.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, overload

import numpy as np
from numpy.typing import NDArray

from distcache.cache import Cache
from distcache.corpus import bin_path
from distcache.corpus.mds.stored_shard import indexed_shard
from distcache.errors import CorpusError, NotReady
from distcache.node.ahead.protocol import Source
from distcache.storage.files import (
    FileVersion,
    open_sized,
    raise_descriptor_limit,
    read_range,
)
from distcache.storage.transient import ATTEMPTS, TRANSIENT, pause_before

FILES_PER_READER: Final = (
    56  # files that each reader may always have open: those of a part of a batch
)
MOST: Final = 8192  # open files of a process, even if its limit is higher
RESERVE: Final = 128  # descriptors for the rest of the process; of a low limit, a quarter
File = tuple[str, int]
"""A path, and the bytes that the file must have."""
NO_FILE: Final = ("", 0)  # of a part without tokens


@functools.cache
def descriptor_budget() -> int:
    """Return how many `.bin` files this process may have open.

    The first call raises the soft limit of open files to the hard one: every open of a file is a
    request to the metadata server of a shared filesystem.
    """
    soft = raise_descriptor_limit()
    free = soft - len(os.listdir("/proc/self/fd")) - min(RESERVE, soft // 4)
    return max(min(free, MOST), FILES_PER_READER)


class _Count:
    """The `.bin` files that this process has open, over all splits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.value = 0

    def add(self, number: int) -> None:
        with self._lock:
            self.value += number


_opened = _Count()


class TokenFiles:
    """The `.bin` files of one reader; the most recently used stay open.

    Parameters
    ----------
    budget : int or None
        Descriptors that all readers of the process may have open; by default
        `descriptor_budget`. Each may always have `FILES_PER_READER`.
    """

    def __init__(self, budget: int | None = None) -> None:
        self._budget = descriptor_budget() if budget is None else budget
        self._open: OrderedDict[str, int] = OrderedDict()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close all."""
        while self._open:
            self._close(next(iter(self._open)))

    def drop(self, path: str) -> None:
        """Close a file, so that it is reopened."""
        if path in self._open:
            self._close(path)

    def _close(self, path: str) -> None:
        os.close(self._open.pop(path))
        _opened.add(-1)

    def descriptors(self, files: Sequence[tuple[str, int]]) -> list[int]:
        """Return descriptors of files, at most `FILES_PER_READER` different ones.

        Parameters
        ----------
        files : sequence of (str, int)
            Paths, and the bytes that each must have.

        Raises
        ------
        CorpusError
            If a file has another length.
        NotReady
            If a file does not exist.
        OSError
            If a file cannot be opened, after retries of transient errors.
        """
        needed = dict(files)
        for path in needed:
            if path in self._open:
                self._open.move_to_end(path)
        missing = [path for path in needed if path not in self._open]
        others = len(self._open) - (len(needed) - len(missing))  # which this call does not need
        while others and self._is_full(len(missing)):
            self._close(next(iter(self._open)))
            others -= 1
        for path in missing:
            self._open[path] = self._open_file(path, needed[path])
            _opened.add(1)
        return [self._open[path] for path, _ in files]

    def read(self, file: tuple[str, int], begin: int, size: int) -> bytes:
        """Read bytes of a file, with retries of transient errors.

        Raises
        ------
        CorpusError
            If the file has another length, or ends before.
        OSError
            If it cannot be read.
        """
        for attempt in itertools.count(1):
            try:
                (descriptor,) = self.descriptors([file])
                return read_range(descriptor, begin, begin + size)
            except EOFError:
                self.recover(file[0], -1, begin, attempt)
            except OSError as error:
                self.recover(file[0], error.errno or 0, begin, attempt)
        raise AssertionError("retries end with an error")

    def announce(self, file: tuple[str, int], begin: int, size: int) -> None:
        """Announce bytes that will be read to the disk; an error is left to their reader."""
        with contextlib.suppress(OSError):
            (descriptor,) = self.descriptors([file])
            os.posix_fadvise(descriptor, begin, size, os.POSIX_FADV_WILLNEED)

    def recover(self, path: str, error: int, byte: int, attempt: int) -> None:
        """Wait, and let a file be reopened after a transient error; raise others.

        Parameters
        ----------
        path : str
            Path of the file.
        error : int
            An error number, or -1 if it has ended too early.
        byte : int
            Byte of the file.
        attempt : int
            Number of failures so far.

        Raises
        ------
        CorpusError
            If the file has ended too early.
        OSError
            If the error does not pass.
        """
        if error < 0:
            raise CorpusError(f"{path}: ends before byte {byte}; it was cut short while open")
        if error not in TRANSIENT or attempt >= ATTEMPTS:
            raise OSError(error, f"{os.strerror(error)} at byte {byte}", path)
        self.drop(path)
        time.sleep(pause_before(attempt))

    def _is_full(self, missing: int) -> bool:
        """Return whether the process, and this reader's share, leave no room for more files."""
        own = len(self._open) + missing
        return own > FILES_PER_READER and _opened.value + missing > self._budget

    def _open_file(self, path: str, size: int) -> int:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                descriptor, found = open_sized(path)
                break
            except FileNotFoundError as error:
                raise NotReady(
                    f"{path}: no such file: its tokens are read from there; put it back, or "
                    "build the cache again"
                ) from error
            except OSError as error:
                if attempt == ATTEMPTS or error.errno not in TRANSIENT:
                    raise
                time.sleep(pause_before(attempt))
        if found != size:
            os.close(descriptor)
            raise CorpusError(
                f"{path}: has {found} bytes, the cache was built from {size}; build it again"
            )
        return descriptor


def _nothing(_: int) -> None:
    """Return that the fetcher reads nothing in the place of a file."""


@dataclass(frozen=True, eq=False)
class TokenPlaces:
    """The files with the tokens of a corpus."""

    files: Sequence[File]  # the `.bin`; or the shards, in their order
    # bytes of the `.bin` at which the shards begin; None if there is a `.bin`
    begins: NDArray[np.int64] | None = None
    # what the node's fetcher reads in the place of a file, by its number: nothing, by default
    fetched: Callable[[int], Source | None] = _nothing

    @property
    def are_fetched(self) -> bool:
        """Whether the fetcher reads any of the files."""
        return self.fetched is not _nothing


def find_tokens(
    cache: Cache, source: int, prefix: str, size: int, *, unpacked_ahead: bool = False
) -> TokenPlaces:
    """Find the tokens of a corpus.

    Parameters
    ----------
    cache : Cache
        Cache with the table of its shards.
    source : int
        Number of the corpus.
    prefix : str
        Prefix of the corpus; a `.bin` there is preferred to shards.
    size : int
        Bytes of the `.bin`.
    unpacked_ahead : bool
        Whether the node's fetcher unpacks its compressed shards.

    Raises
    ------
    NotReady
        If a shard is compressed, and the `.bin` is not there.
    """
    shards = cache.shards_of(source)
    path = bin_path(prefix)
    if not len(shards) or os.path.lexists(path):
        return TokenPlaces([(path, size)])
    packed = np.flatnonzero(shards["codec"])
    if len(packed) and not unpacked_ahead:
        raise NotReady(
            f"{cache.shard_path(shards[packed[0]])}: is compressed, and training decompresses "
            "nothing; run `distcache localize` on this node, or build from a copy that "
            "`distcache materialize` makes of the corpus"
        )
    fetched = _unpacked_shards(cache, shards) if len(packed) else _nothing
    return TokenPlaces(_ShardFiles(cache, shards), shards["base"].astype(np.int64), fetched)


def _unpacked_shards(cache: Cache, shards: NDArray[Any]) -> Callable[[int], Source | None]:
    """Return the function to what the fetcher unpacks of a corpus: its compressed shards."""

    @functools.cache
    def fetched(shard: int) -> Source | None:
        stored, digest = indexed_shard(shards[shard], cache.shard_path(shards[shard]))
        version = FileVersion(stored.size, 0, 0)
        packed = Source(stored.path, version, stored.codec, stored.raw_size, digest)
        return packed if stored.codec else None

    return fetched


class _ShardFiles(Sequence[File]):
    """The files of raw shards, whose paths are decoded when they are asked for."""

    def __init__(self, cache: Cache, shards: NDArray[Any]) -> None:
        self._cache = cache
        self._shards = shards

    def __len__(self) -> int:
        return len(self._shards)

    @overload
    def __getitem__(self, shard: int) -> File: ...
    @overload
    def __getitem__(self, shard: slice) -> Sequence[File]: ...
    def __getitem__(self, shard: int | slice) -> File | Sequence[File]:
        if isinstance(shard, slice):
            return [self[place] for place in range(*shard.indices(len(self)))]
        row = self._shards[shard]
        return self._cache.shard_path(row), int(row["raw_size"])


def cut_by_files(files: Sequence[Sequence[File]], most: int) -> list[range]:
    """Cut samples into ranges that need at most so many different files, or are one sample.

    Parameters
    ----------
    files : sequence of sequence of File
        Files of the parts of each sample.
    most : int
        Files that may be open for a range.
    """
    found: list[range] = []
    begin, needed = 0, set[File]()
    for sample, own in enumerate(files):
        more = needed.union(own)
        if sample > begin and len(more) > most:
            found.append(range(begin, sample))
            begin, more = sample, set(own)
        needed = more
    if begin < len(files):
        found.append(range(begin, len(files)))
    return found
