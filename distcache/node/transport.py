"""Fetch blocks from the shared filesystem: `mpi` reads each once for all nodes, `copy` per node."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from distcache.node.local_state import Duplicate
from distcache.node.manifest import Manifest
from distcache.node.place import node_count
from distcache.node.staged_files import StagedFiles, Unreadable, differs
from distcache.node.striped_broadcast import striped_broadcast
from distcache.progress import Progress
from distcache.ranks.agreement import on_all_ranks, on_all_ranks_watched
from distcache.ranks.communicator import Communicator

__all__ = ["AT_ONCE", "choose_transport", "copy_duplicates", "fetch", "turns"]

AT_ONCE: Final = 64  # nodes that read at a time, where MPI joins them
LONGEST_JITTER: Final = 5.0  # seconds


def choose_transport(asked: str, agents: int) -> tuple[str, str]:
    """Return the transport, and the reason in a few words."""
    if asked != "auto":
        return asked, "asked for"
    if agents > 1:
        return "mpi", f"{agents} nodes, so that each byte is read from the shared filesystem once"
    return "copy", "a single node"


def fetch(
    agents: Communicator,
    manifest: Manifest,
    staged: StagedFiles,
    mine: Sequence[int],
    threads: int,
    transport: str,
    progress: Progress,
) -> int:
    """Fetch the blocks that nodes need from the shared filesystem. Collective.

    Parameters
    ----------
    agents : Communicator
        One of each node.
    manifest, staged : Manifest, StagedFiles
        What to fetch, and where to write it.
    mine : sequence of int
        Blocks that this node needs.
    threads : int
        Blocks that an agent copies at a time.
    transport : str
        "mpi" or "copy".
    progress : Progress
        Receives numbers of bytes.

    Returns
    -------
    int
        Bytes that this agent has read.

    Raises
    ------
    DistcacheError
        On all agents the same.
    """
    if transport == "copy":
        return _copy_in_turns(agents, manifest, staged, mine, threads, progress)
    shares = agents.allgather(list(mine), list[int], "what the nodes need")
    needed = sorted({number for share in shares for number in share})

    def relay() -> int:
        return striped_broadcast(
            agents, manifest, staged, needed, frozenset(mine), progress.advance
        )

    return on_all_ranks(agents, relay, "broadcasting stripes")


def _copy_in_turns(
    agents: Communicator,
    manifest: Manifest,
    staged: StagedFiles,
    mine: Sequence[int],
    threads: int,
    progress: Progress,
) -> int:
    """Let every node read for itself, a group of nodes at a time. Collective."""

    def copy() -> int:
        return _copy_shared(manifest, staged, mine, threads, progress.advance)

    if agents.size == 1 and mine:
        jitter(node_count(os.environ))
    return sum(
        on_all_ranks_watched(agents, copy if agents.rank in turn else int, "copying")
        for turn in turns(agents.size)
    )


def turns(nodes: int) -> list[range]:
    """Return the nodes in groups that read at a time."""
    return [range(begin, min(begin + AT_ONCE, nodes)) for begin in range(0, nodes, AT_ONCE)]


def jitter(nodes: int) -> None:
    """Wait for a random time, so that not all nodes open the same file at once."""
    if nodes > 1:
        time.sleep(random.uniform(0, min(LONGEST_JITTER, 0.01 * nodes)))  # noqa: S311


def _copy_shared(
    manifest: Manifest,
    staged: StagedFiles,
    numbers: Sequence[int],
    threads: int,
    advance: Callable[[float], None],
) -> int:
    """Copy blocks from the shared filesystem, and compare each with its digest.

    Parameters
    ----------
    manifest, staged : Manifest, StagedFiles
        What to fetch, and where to write it.
    numbers : sequence of int
        Of the blocks.
    threads : int
        Blocks that are read at a time.
    advance : callable
        Receives numbers of bytes.

    Returns
    -------
    int
        Bytes that were read.

    Raises
    ------
    CacheCorrupt, CorpusError
        If a shared file differs from its digest.
    Unreadable
        If it cannot be read.
    """

    def copy(number: int) -> int:
        block = manifest.blocks[number]
        if not staged.copy(block, manifest.files[block.file].shared, block.begin, advance):
            raise differs(manifest, block)
        return block.size

    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(copy, number) for number in numbers]
        try:
            return sum(future.result() for future in futures)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def copy_duplicates(
    manifest: Manifest,
    staged: StagedFiles,
    places: Mapping[int, Duplicate],
    threads: int,
    advance: Callable[[float], None],
) -> frozenset[int]:
    """Copy blocks from other caches of the store, and return those whose digest matches."""

    def copy(number: int) -> bool:
        block, place = manifest.blocks[number], places[number]
        try:
            return staged.copy(block, place.path, place.begin, advance)
        except Unreadable:
            return False  # it is fetched like the others

    with ThreadPoolExecutor(threads) as pool:
        found = zip(places, pool.map(copy, places), strict=True)
        return frozenset(number for number, right in found if right)
