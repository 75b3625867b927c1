"""Fetch blocks from the shared filesystem: `mpi` reads each once for all nodes, `copy` per node."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from distcache.node.arrivals import broadcast_blocks
from distcache.node.local_state import Duplicate
from distcache.node.localization import Localization
from distcache.node.manifest import origin_of
from distcache.node.staged_files import Unreadable, differs
from distcache.ranks.agreement import on_all_ranks
from distcache.ranks.job_environment import node_count
from distcache.storage.place import threads_for

AT_ONCE: Final = 64  # nodes that read at a time, where MPI joins them
LONGEST_JITTER: Final = 5.0  # seconds


def choose_transport(asked: str, agents: int) -> tuple[str, str]:
    """Return the transport, and the reason in a few words."""
    if asked != "auto":
        return asked, "asked for"
    if agents > 1:
        return "mpi", f"{agents} nodes, so that each byte is read from the shared filesystem once"
    return "copy", "this process knows of one node"


def fetch(run: Localization, mine: Sequence[int]) -> int:
    """Fetch the blocks that nodes need from the shared filesystem. Collective.

    Parameters
    ----------
    run : Localization
        Localization with what to fetch.
    mine : sequence of int
        Blocks that this node needs.

    Returns
    -------
    int
        Bytes that this agent has read.

    Raises
    ------
    DistcacheError
        On all agents the same.
    """
    if run.options.transport == "copy":
        return _copy_in_turns(run, mine)
    shares = run.agents.allgather(list(mine), list[int], "what the nodes need")
    needed = sorted({number for share in shares for number in share})
    return on_all_ranks(
        run.agents, lambda: broadcast_blocks(run, needed, frozenset(mine)), "broadcasting chunks"
    )


def _copy_in_turns(run: Localization, mine: Sequence[int]) -> int:
    """Let every node read for itself, a group of nodes at a time. Collective."""
    if run.agents.size == 1 and mine:
        jitter(node_count(os.environ))
    read = 0
    for turn in turns(run.agents.size):
        own = mine if run.agents.rank in turn else ()
        read += run.on_all_agents_watched(partial(_copy_shared, run, own), "copying")
    return read


def turns(nodes: int) -> list[range]:
    """Return the nodes in groups that read at a time."""
    return [range(begin, min(begin + AT_ONCE, nodes)) for begin in range(0, nodes, AT_ONCE)]


def jitter(nodes: int) -> None:
    """Wait for a random time, so that not all nodes open the same file at once."""
    if nodes > 1:
        time.sleep(random.uniform(0, min(LONGEST_JITTER, 0.01 * nodes)))  # noqa: S311


def _copy_shared(run: Localization, numbers: Sequence[int]) -> int:
    """Copy blocks from the shared filesystem, and return their bytes.

    Raises
    ------
    CacheCorrupt, CorpusError
        If a shared file differs from its digest.
    Unreadable
        If it cannot be read.
    """

    def copy(number: int) -> int:
        block = run.manifest.blocks[number]
        path, begin, end, version = origin_of(run.manifest, block)
        if block.source is None:
            valid = run.staged.copy(block, path, begin, run.progress.advance, version)
        else:
            valid = run.staged.unpack(block, None, run.progress.advance)
        if not valid:
            raise differs(run.manifest, block)
        return end - begin

    blocks = (run.manifest.blocks[number] for number in numbers)
    paths = (origin_of(run.manifest, block)[0] for block in blocks)
    with ThreadPoolExecutor(threads_for(paths, run.options.threads)) as pool:
        futures = [pool.submit(copy, number) for number in numbers]
        try:
            return sum(future.result() for future in futures)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def copy_duplicates(run: Localization, places: Mapping[int, Duplicate]) -> frozenset[int]:
    """Copy blocks from other caches of the store, and return those whose digest matches."""

    def copy(number: int) -> bool:
        block, place = run.manifest.blocks[number], places[number]
        try:
            return run.staged.copy(block, place.path, place.begin, run.progress.advance)
        except Unreadable:
            return False  # it is fetched like the others

    with ThreadPoolExecutor(run.options.threads) as pool:
        found = zip(places, pool.map(copy, places), strict=True)
        return frozenset(number for number, right in found if right)
