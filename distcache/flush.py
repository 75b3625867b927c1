"""Let the disk begin with what has been written, so that syncing in the end waits for less."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from distcache.activity import moved

__all__ = ["Flusher"]

EVERY: Final = 64 << 20  # bytes


class Flusher:
    """Syncs a file in a thread of its own, whenever enough has been written to it.

    Parameters
    ----------
    descriptor : int
        The open file, which outlives this.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._written = 0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="flush")
        self._flushed: list[Future[None]] = []

    def written(self, count: int) -> None:
        """Count bytes that have been written. Called from any thread."""
        with self._lock:
            self._written += count
            if self._written >= EVERY:
                self._written = 0
                self._flushed.append(self._pool.submit(self._flush))

    def _flush(self) -> None:
        os.fdatasync(self._descriptor)
        moved()

    def sync(self) -> None:
        """Wait until all that was written is on disk.

        Raises
        ------
        OSError
            Also if an earlier sync failed: the kernel tells of an error only once.
        """
        for flushed in self._flushed:
            flushed.result()
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Begin no further syncs, and wait for the one that goes on."""
        self._pool.shutdown(cancel_futures=True)
