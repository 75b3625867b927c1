"""The `copy` transport: every node reads for itself, a few units at a time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from distcache.node.inventory import Elsewhere
from distcache.node.landing import Landing, Unreadable, differs
from distcache.node.wanted import Wanted

__all__ = ["AT_ONCE", "copy_elsewhere", "copy_shared", "jitter", "turns"]

AT_ONCE: Final = 64  # nodes that read at a time, where they know of one another
LONGEST_JITTER: Final = 5.0  # seconds


def turns(nodes: int) -> list[range]:
    """Return the nodes in groups that read at a time."""
    return [range(begin, min(begin + AT_ONCE, nodes)) for begin in range(0, nodes, AT_ONCE)]


def jitter(nodes: int) -> None:
    """Wait for a random time, so that nodes do not all open the same file at once."""
    if nodes > 1:
        time.sleep(random.uniform(0, min(LONGEST_JITTER, 0.01 * nodes)))  # noqa: S311


def copy_shared(
    wanted: Wanted,
    landing: Landing,
    numbers: Sequence[int],
    threads: int,
    advance: Callable[[float], None],
) -> int:
    """Copy units from the shared filesystem, and compare each with its digest.

    Parameters
    ----------
    wanted, landing : Wanted, Landing
        What, and where to.
    numbers : sequence of int
        Of the units.
    threads : int
        Units that are read at a time.
    advance : callable
        Told of bytes.

    Returns
    -------
    int
        Bytes that were read.

    Raises
    ------
    CacheCorrupt, CorpusError
        If a shared file is not what the cache says.
    Unreadable
        If it cannot be read.
    """

    def copy(number: int) -> int:
        unit = wanted.units[number]
        if not landing.copy(unit, wanted.files[unit.file].shared, unit.begin, advance):
            raise differs(wanted, unit)
        return unit.size

    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(copy, number) for number in numbers]
        try:
            return sum(future.result() for future in futures)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def copy_elsewhere(
    wanted: Wanted,
    landing: Landing,
    places: Mapping[int, Elsewhere],
    threads: int,
    advance: Callable[[float], None],
) -> frozenset[int]:
    """Copy units from other caches of the store, and return those that turned out right."""

    def copy(number: int) -> bool:
        unit, place = wanted.units[number], places[number]
        try:
            return landing.copy(unit, place.path, place.begin, advance)
        except Unreadable:
            return False  # it is fetched like the others

    with ThreadPoolExecutor(threads) as pool:
        found = zip(places, pool.map(copy, places), strict=True)
        return frozenset(number for number, right in found if right)
