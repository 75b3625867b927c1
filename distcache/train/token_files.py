"""The files of tokens that a process has open, opened with retries.

They are read, not mapped: a read returns an error of the filesystem, where a mapping raises SIGBUS.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from distcache.errors import CorpusError, NotReady
from distcache.storage.files import open_sized, raise_descriptor_limit, read_range
from distcache.storage.timeouts import MAX_ATTEMPTS, TRANSIENT, pause_before, retried

FILES_PER_READER: Final = 56  # that each reader may always have open: those of a part of a batch
MAX_OPEN_FILES: Final = 8192  # open files of a process, even if its limit is higher
SPARE_DESCRIPTORS: Final = 128  # descriptors for the rest of the process; of a low limit, a quarter
File = tuple[str, int]
"""A path, and the bytes that the file must have."""


@functools.cache
def descriptor_budget() -> int:
    """Return how many `.bin` files this process may have open.

    The first call raises the soft limit of open files to the hard one: every open of a file is a
    request to the metadata server of a shared filesystem.
    """
    soft = raise_descriptor_limit()
    free = soft - len(os.listdir("/proc/self/fd")) - min(SPARE_DESCRIPTORS, soft // 4)
    return max(min(free, MAX_OPEN_FILES), FILES_PER_READER)


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
        """Return descriptors of files, which other calls close again.

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
            If a file cannot be opened.
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

        def once() -> bytes:
            (descriptor,) = self.descriptors([file])
            try:
                return read_range(descriptor, begin, begin + size)
            except OSError as error:
                self.drop(file[0])
                reason = f"{error.strerror} at byte {begin}"
                raise OSError(error.errno, reason, file[0]) from error

        try:
            return retried(once)
        except EOFError as error:
            raise CorpusError(
                f"{file[0]}: ends before byte {begin + size}; it was cut short while open"
            ) from error

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
        if error not in TRANSIENT or attempt >= MAX_ATTEMPTS:
            raise OSError(error, f"{os.strerror(error)} at byte {byte}", path)
        self.drop(path)
        time.sleep(pause_before(attempt))

    def _is_full(self, missing: int) -> bool:
        """Return whether the process, and this reader's share, leave no room for more files."""
        own = len(self._open) + missing
        return own > FILES_PER_READER and _opened.value + missing > self._budget

    def _open_file(self, path: str, size: int) -> int:
        try:
            descriptor, found = open_sized(path)
        except FileNotFoundError as error:
            raise NotReady(
                f"{path}: no such file: its tokens are read from there; put it back, or build the "
                "cache again"
            ) from error
        if found != size:
            os.close(descriptor)
            raise CorpusError(
                f"{path}: has {found} bytes, the cache was built from {size}; build it again"
            )
        return descriptor
