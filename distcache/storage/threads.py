"""Threads that map over short tasks, and types that several threads may decode."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from distcache.storage.watchdog import tick

Item = TypeVar("Item")
Result = TypeVar("Result")
Kind = TypeVar("Kind", bound=type)


def decodable(kind: Kind) -> Kind:
    """Let msgspec describe a type when it is defined; a class decorator.

    msgspec does so when a type is first decoded, and crashes if two threads are the first at once
    (seen with msgspec 0.22). So the types decoded in processes of users are described before.
    """
    msgspec.json.Decoder(kind)
    return kind


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
        Greatest number of threads.

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
