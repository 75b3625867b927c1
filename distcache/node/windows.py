"""Shards on a node within a budget: a sparse `.bin` for each corpus, filled and emptied by shards.

A file beside each `.bin` says which shards it holds: a generation for each, a random number
that is 0 while the shard is absent. Readers compare the generations before and after, and read
again if they differ. Only the feeder writes, which holds the lock.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from distcache.cache.contents import Contents
from distcache.corpus.mds.stored_shard import indexed_pieces
from distcache.errors import ConfigError, DistcacheError
from distcache.node.manifest import shard_blocks
from distcache.node.store import Store
from distcache.storage.files import (
    closing_fd,
    no_space_as_error,
    open_to_write,
    read_range,
    write_range,
)

GENERATION: Final = np.dtype("<u4")
BUDGET: Final = np.dtype("<u8")  # in the file of the lock
KEEP_SIZE: Final = 1  # of linux/falloc.h
PUNCH_HOLE: Final = 2


def windowed_sources(contents: Contents) -> list[int]:
    """Return the corpora of a cache that have compressed shards."""
    count = len(contents.table("sources"))
    return [source for source in range(count) if contents.shards_of(source)["codec"].any()]


class Windows:
    """The files of the windows of one cache in a store.

    Parameters
    ----------
    store : Store
        The node's.
    name : str
        Name of the cache in the store.
    """

    def __init__(self, store: Store, name: str) -> None:
        self.root = store.windows / name
        self.lock = self.root / "feeder.lock"

    def tell_budget(self, budget: int) -> None:
        """Let those who read know the bytes that all shards together may take, 0 if there are none.

        The caller must hold the lock.
        """
        with closing_fd(open_to_write(str(self.lock))) as descriptor:
            write_range(descriptor, 0, np.array([budget], BUDGET))

    def budget(self) -> int:
        """Return the budget that the feeder has published, or 0."""
        try:
            with closing_fd(os.open(self.lock, os.O_RDONLY | os.O_CLOEXEC)) as descriptor:
                return int.from_bytes(read_range(descriptor, 0, BUDGET.itemsize), "little")
        except (FileNotFoundError, EOFError):
            return 0

    def prefix(self, source: int) -> str:
        """Return the path of the `.bin` of a corpus, without suffix."""
        return str(self.root / str(source))

    def bin(self, source: int) -> str:
        """Return the path of the `.bin` of a corpus."""
        return f"{self.prefix(source)}.bin"

    def state(self, source: int) -> str:
        """Return the path of the generations of its shards."""
        return f"{self.prefix(source)}.state"

    def make(self, contents: Contents) -> None:
        """Make the empty files; those that are there with their sizes are kept.

        Raises
        ------
        CorpusError
            If the digests of shards are not known.
        """
        if self.root.is_symlink():
            self.root.unlink()  # a link could lead out of the store
        self.root.mkdir(mode=0o700, exist_ok=True)
        for source in windowed_sources(contents):
            shards = shard_blocks(contents, source, 0)
            size = int(contents.table("sources")["bin_size"][source])
            for path, length in (
                (self.bin(source), size),
                (self.state(source), GENERATION.itemsize * len(shards)),
            ):
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                with closing_fd(os.open(path, flags, 0o600)) as descriptor:
                    os.ftruncate(descriptor, length)

    def generations(self, source: int) -> NDArray[np.uint32]:
        """Return the generation of each shard of a corpus, 0 for those that are not there."""
        with closing_fd(os.open(self.state(source), os.O_RDONLY | os.O_CLOEXEC)) as descriptor:
            content = read_range(descriptor, 0, os.fstat(descriptor).st_size)
        return np.frombuffer(content, GENERATION)

    def clear(self, contents: Contents) -> None:
        """Empty all windows, whatever a feeder that was killed has left."""
        for source in windowed_sources(contents):
            count = len(contents.shards_of(source))
            self._set(source, 0, np.zeros(count, GENERATION))
            size = int(contents.table("sources")["bin_size"][source])
            self._punch(source, 0, size)

    def fill(self, source: int, shard: int, row: Any, path: str) -> None:
        """Unpack a shard to its place, and say that it is there.

        Parameters
        ----------
        source, shard : int
            The corpus, and which of its shards.
        row : row of the table of shards
            Row of the shard.
        path : str
            Path of the shard's file.

        Raises
        ------
        CorpusError
            If it is not the shard that was indexed.
        NoSpace
            If the disk is full.
        """
        offset, target = int(row["base"]), self.bin(source)
        with no_space_as_error(target), closing_fd(open_to_write(target)) as descriptor:
            for piece in indexed_pieces(row, path):
                write_range(descriptor, offset, piece)
                offset += piece.size
        generation = secrets.randbelow(2**32 - 1) + 1
        self._set(source, shard, np.array([generation], GENERATION))

    def drop(self, source: int, shard: int, row: Any) -> None:
        """Say that a shard is not there, then give its space back."""
        self._set(source, shard, np.zeros(1, GENERATION))
        self._punch(source, int(row["base"]), int(row["raw_size"]))

    def _set(self, source: int, first: int, values: NDArray[np.uint32]) -> None:
        with closing_fd(open_to_write(self.state(source))) as descriptor:
            write_range(descriptor, GENERATION.itemsize * first, values)

    def _punch(self, source: int, begin: int, size: int) -> None:
        """Give the disk space of bytes back; they read as zeros.

        Raises
        ------
        ConfigError
            If the filesystem cannot.
        """
        if not size:
            return
        path = self.bin(source)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
        with closing_fd(open_to_write(path)) as descriptor:
            if libc.fallocate(descriptor, KEEP_SIZE | PUNCH_HOLE, begin, size) == 0:
                return
        number = ctypes.get_errno()
        if number in (errno.EOPNOTSUPP, errno.ENOSYS):
            raise ConfigError(
                f"{path}: its filesystem cannot give back parts of a file, which windows need; "
                "choose a directory on another one with --store"
            )
        raise DistcacheError(f"{path}: cannot be emptied: {os.strerror(number)}")
