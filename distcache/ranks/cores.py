"""How many threads a rank should use, where nobody says."""

from __future__ import annotations

import os
import socket
from typing import Final

from distcache.ranks.communicator import Communicator

__all__ = ["share_of_cores", "threads_of"]

MOST: Final = 8  # each thread of a build may hold a section of its own


def share_of_cores(communicator: Communicator, most: int = MOST) -> int:
    """Return this rank's share of the cores that it may run on, from 1 to `most`. Collective.

    Ranks that the launcher has bound to cores of their own share them with nobody.
    """
    cores = sorted(os.sched_getaffinity(0))
    mine = (socket.gethostname(), cores)
    everyone = communicator.gather_all(mine, tuple[str, list[int]], "cores of the ranks")
    sharing = sum((host, own) == mine for host, own in everyone)
    return threads_of(len(cores), sharing, most)


def threads_of(cores: int, ranks: int, most: int = MOST) -> int:
    """Return the threads of each of several ranks that share cores, from 1 to `most`."""
    return max(min(cores // ranks, most), 1)
