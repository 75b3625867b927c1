"""The cores that ranks may use: of their affinity, within the quotas of their cgroups."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from distcache.ranks.communicator import Communicator
from distcache.ranks.job_environment import node_name

MAX_THREADS: Final = 8  # each thread of a build may hold a section of its own
CGROUPS: Final = Path("/sys/fs/cgroup")
MEMBERSHIP: Final = Path("/proc/self/cgroup")


def share_of_cores(communicator: Communicator, most: int = MAX_THREADS) -> int:
    """Return the smallest share that any rank has of the cores it may use. Collective.

    The same on all ranks, from 1 to `most`. Ranks share the cores to which both are bound.
    """
    cores = sorted(os.sched_getaffinity(0))
    mine = (node_name(os.environ), cores, usable_cores())
    kind = tuple[str, tuple[int, ...], int]
    everyone = communicator.allgather(mine, kind, "cores of the ranks")
    sharing = Counter((host, tuple(cores), usable) for host, cores, usable in everyone)
    return min(threads_of(usable, ranks, most) for (_, _, usable), ranks in sharing.items())


def threads_of(cores: int, ranks: int, most: int = MAX_THREADS) -> int:
    """Return the threads of each of several ranks that share cores, from 1 to `most`."""
    return max(min(cores // ranks, most), 1)


def usable_cores() -> int:
    """Return the cores of this process's affinity that the quotas of its cgroups let it use."""
    return max(int(min(len(os.sched_getaffinity(0)), _quota())), 1)


def _quota() -> float:
    """Return the cores of the smallest quota; infinity if there is none.

    Source: the kernel's Documentation/admin-guide/cgroup-v2.rst, and sched-bwc.rst for version 1,
    where -1 is no quota.
    """
    quotas = [float("inf")]
    for values in cgroup_limits("cpu.max"):
        quota, _, period = values.partition(" ")
        if quota.isdecimal() and period.isdecimal() and int(period):
            quotas.append(int(quota) / int(period))
    pairs = zip(cgroup_limits("cpu.cfs_quota_us"), cgroup_limits("cpu.cfs_period_us"), strict=False)
    for quota, period in pairs:
        if quota.isdecimal() and period.isdecimal() and int(period):
            quotas.append(int(quota) / int(period))
    return min(quotas)


def cgroup_limits(name: str) -> Iterator[str]:
    """Yield a limit of each cgroup that holds this process, the closest first.

    Parameters
    ----------
    name : str
        Name of the file: ``cpu.max``, or with its controller's name in version 1, ``memory.max``.
    """
    controller = name.partition(".")[0]
    for line in _lines(MEMBERSHIP):
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = CGROUPS / controllers if (CGROUPS / controllers).is_dir() else CGROUPS / controller
        group = root / path.lstrip("/")  # which a container may not see, but for the root
        while True:
            yield from _lines(group / name)[:1]
            if group == root:
                break
            group = group.parent


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
