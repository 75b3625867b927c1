"""A file that ranks write side by side, each at its own places."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, Final

from numpy.typing import NDArray

from distcache.storage.files import no_space_as_error, write_range
from distcache.storage.interruption import require_uninterrupted
from distcache.storage.watchdog import tick

SYNC_EVERY: Final = 64 << 20  # bytes


class UnfinishedFile(AbstractContextManager["UnfinishedFile"]):
    """An open unfinished file, synced in a thread whenever enough has been written to it.

    Every rank opens it, and syncs what it has written.

    Parameters
    ----------
    path : str
        Path of the file.
    make : bool
        Whether to make it if it does not exist.

    Attributes
    ----------
    descriptor : int
        Descriptor of the open file, for reading back.
    """

    def __init__(self, path: str, *, make: bool = False) -> None:
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT if make else 0)
        self._path = path
        with no_space_as_error(path):
            self.descriptor = os.open(path, flags, 0o644)
        # A client of a network filesystem keeps what it has read ahead, which others write later.
        os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        self._lock = threading.Lock()
        self._unsynced = 0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="sync")
        self._syncs: list[Future[None]] = []

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Start no further syncs, wait for the current one, and close the file."""
        self._pool.shutdown(cancel_futures=True)
        os.close(self.descriptor)

    def write(self, offset: int, data: bytes | NDArray[Any]) -> None:
        """Write all bytes of an array at a byte offset. From any thread.

        Raises
        ------
        BuildInterrupted
            If a signal has interrupted the process, so that worker threads stop early.
        """
        require_uninterrupted()
        with no_space_as_error(self._path):
            write_range(self.descriptor, offset, data)
        with self._lock:
            self._unsynced += len(data) if isinstance(data, bytes) else data.nbytes
            if self._unsynced >= SYNC_EVERY:
                self._unsynced = 0
                self._syncs.append(self._pool.submit(self._sync))

    def _sync(self) -> None:
        os.fdatasync(self.descriptor)
        tick()

    def sync(self) -> None:
        """Wait until all that was written is on disk.

        Raises
        ------
        OSError
            Also if an earlier sync failed: the kernel reports an error only once.
        """
        with no_space_as_error(self._path):
            for pending in self._syncs:
                pending.result()
            os.fsync(self.descriptor)

    def truncate(self, size: int) -> None:
        """Set the file's length in bytes."""
        with no_space_as_error(self._path):
            os.ftruncate(self.descriptor, size)
