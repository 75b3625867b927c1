"""What the launcher, the scheduler and the machine give a process of a job: variables and cores."""

from __future__ import annotations

import os
import socket
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from distcache.ranks.communicator import Communicator

NODE_NAME: Final = "DISTCACHE_NODE_NAME"
ALONE: Final = "DISTCACHE_ALONE"
# Set by Open MPI's mpirun, by MPICH's mpiexec and srun --mpi=pmi2, and by srun; the closest first.
# Not SLURM_NTASKS, which an allocation has too, where no step has been started.
WORLD_VARIABLES: Final = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
# Directories of a job on its node, which are shared with other users.
SCRATCH: Final = ("SLURM_TMPDIR", "TMPDIR")
MAX_THREADS: Final = 8  # each thread of a build may hold a section of its own
CGROUPS: Final = Path("/sys/fs/cgroup")
MEMBERSHIP: Final = Path("/proc/self/cgroup")


def node_name(environment: Mapping[str, str]) -> str:
    """Return the name of this node; tests give several names to one machine."""
    return environment.get(NODE_NAME) or socket.gethostname()


def world_size(environment: Mapping[str, str]) -> tuple[str, int]:
    """Return the variable with the number of processes that the launcher started, and its value.

    Without a launcher, or with ``DISTCACHE_ALONE=1``, the name is empty and the number is 1.
    """
    if environment.get(ALONE, "0") not in ("", "0"):
        return "", 1
    for name in WORLD_VARIABLES:
        value = environment.get(name, "")
        if value.isdecimal():
            return name, int(value)
    return "", 1


def is_first_task(environment: Mapping[str, str]) -> bool:
    """Return whether this process may speak for its job: task 0, or outside of Slurm."""
    return environment.get("SLURM_PROCID", "0") == "0"


def has_lost_launcher(environment: Mapping[str, str]) -> bool:
    """Return whether PMI_FD names no socket, for which MPICH's library would abort the process.

    A child that inherits no descriptors, such as one of `subprocess`, has lost it.
    """
    number = environment.get("PMI_FD", "")
    if not number.isdecimal():
        return False
    try:
        return not stat.S_ISSOCK(os.fstat(int(number)).st_mode)
    except OSError:
        return True


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
