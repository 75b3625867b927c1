"""How many threads a rank should use, where nobody says."""

from __future__ import annotations

import os
import socket
from collections import Counter
from typing import Final

from distcache.ranks.communicator import Communicator

__all__ = ["share_of_cores", "threads_of"]

MOST: Final = 8  # each thread of a build may hold a section of its own


def share_of_cores(communicator: Communicator, most: int = MOST) -> int:
    """Return the least share that any rank has of the cores it may run on. Collective.

    The same on all ranks, from 1 to `most`. Ranks that the launcher has bound to cores of their
    own share them with nobody.
    """
    mine = (socket.gethostname(), sorted(os.sched_getaffinity(0)))
    everyone = communicator.gather_all(mine, tuple[str, tuple[int, ...]], "cores of the ranks")
    sharing = Counter((host, tuple(cores)) for host, cores in everyone)
    return min(threads_of(len(cores), ranks, most) for (_, cores), ranks in sharing.items())


def threads_of(cores: int, ranks: int, most: int = MOST) -> int:
    """Return the threads of each of several ranks that share cores, from 1 to `most`."""
    return max(min(cores // ranks, most), 1)
