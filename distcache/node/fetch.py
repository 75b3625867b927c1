"""Bring units from the shared filesystem, by the transport that was chosen."""

from __future__ import annotations

import os
from collections.abc import Sequence

from distcache.node.copies import copy_shared, jitter, turns
from distcache.node.landing import Landing
from distcache.node.local import locally
from distcache.node.place import node_count
from distcache.node.report import LocalizeOptions
from distcache.node.sbcast import broadcast_cache
from distcache.node.stripes import pass_on
from distcache.node.wanted import Wanted
from distcache.progress import Progress
from distcache.ranks.agreement import together
from distcache.ranks.communicator import Communicator

__all__ = ["fetch"]


def fetch(
    agents: Communicator,
    wanted: Wanted,
    landing: Landing,
    mine: Sequence[int],
    options: LocalizeOptions,
    transport: str,
    progress: Progress,
) -> int:
    """Bring the units that nodes need from the shared filesystem. Collective.

    Parameters
    ----------
    agents : Communicator
        One of each node.
    wanted, landing : Wanted, Landing
        What, and where to.
    mine : sequence of int
        Units that this node needs.
    options : LocalizeOptions
        How.
    transport : str
        "mpi", "copy" or "sbcast".
    progress : Progress
        Told of bytes.

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
        return _copy(agents, wanted, landing, mine, options.threads, progress)
    read = 0
    if transport == "sbcast":
        left, read = broadcast_cache(
            agents, wanted, landing, mine, options.threads, os.environ, progress.advance
        )
        landing.written += sum(wanted.units[number].size for number in set(mine) - set(left))
        mine = left
    shares = agents.gather_all(list(mine), list[int], "what the nodes need")
    needed = sorted({number for share in shares for number in share})

    def relay() -> int:
        return pass_on(agents, wanted, landing, needed, frozenset(mine), progress.advance)

    return read + together(agents, relay, "passing stripes on")


def _copy(
    agents: Communicator,
    wanted: Wanted,
    landing: Landing,
    mine: Sequence[int],
    threads: int,
    progress: Progress,
) -> int:
    """Let every node read for itself, some at a time. Collective."""

    def copy() -> int:
        return copy_shared(wanted, landing, mine, threads, progress.advance)

    if agents.size == 1 and mine:
        jitter(node_count(os.environ))
    read = 0
    for turn in turns(agents.size):
        read += locally(agents, copy if agents.rank in turn else int, "copying")
    return read
