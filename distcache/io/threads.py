"""Threads that map over short tasks, and that start write-back early."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

from distcache.io.watchdog import tick

__all__ = ["Flusher", "map_in_threads"]

Item = TypeVar("Item")
Result = TypeVar("Result")
EVERY: Final = 64 << 20  # bytes


def map_in_threads(
    action: Callable[[Item], Result], items: Sequence[Item], threads: int
) -> list[Result]:
    """Apply a function to every item, and return the results in order.

    Parameters
    ----------
    action : callable
        Called from several threads, the caller's among them.
    items : sequence
        Taken one after the other by whichever thread is free.
    threads : int
        At most this many.

    Returns
    -------
    list
        The results.

    Raises
    ------
    Exception
        The first that `action` raised in any thread; the others finish their current item.
    """
    if threads < 2 or len(items) < 2:
        return [action(item) for item in items]
    results: list[Any] = [None] * len(items)
    numbers = itertools.count()  # whose `next` is one step, for all threads
    failed = threading.Event()

    def work() -> None:
        try:
            while not failed.is_set() and (number := next(numbers)) < len(items):
                results[number] = action(items[number])
                tick()
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(min(threads, len(items)) - 1) as pool:
        try:
            others = [pool.submit(work) for _ in range(min(threads, len(items)) - 1)]
            work()
        except BaseException:
            failed.set()
            raise
        for other in others:
            other.result()
    return results


class Flusher:
    """Syncs a file in a thread whenever enough has been written to it.

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
        tick()

    def sync(self) -> None:
        """Wait until all that was written is on disk.

        Raises
        ------
        OSError
            Also if an earlier sync failed: the kernel reports an error only once.
        """
        for flushed in self._flushed:
            flushed.result()
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Start no further syncs, and wait for the current one."""
        self._pool.shutdown(cancel_futures=True)
