"""Join the ranks that a launcher has started, and divide the cores of their machines."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Mapping
from typing import Final

from distcache.errors import ConfigError
from distcache.extras import how_to_install
from distcache.ranks.communicator import Communicator, SerialCommunicator

__all__ = ["connect", "connected", "share_of_cores", "threads_of", "world_size"]

# Set by Open MPI's mpirun, by MPICH's mpiexec and srun --mpi=pmi2, and by srun; the closest first.
# Not SLURM_NTASKS, which an allocation has too, where no step has been started.
WORLD_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
MOST_THREADS: Final = 8  # each thread of a build may hold a section of its own

_connected: Communicator | None = None


def world_size(environment: Mapping[str, str]) -> tuple[str, int]:
    """Return the variable with the number of processes that the launcher started, and its value.

    Without a launcher the name is empty and the number is 1.
    """
    for name in WORLD_VARIABLES:
        value = environment.get(name, "")
        if value.isdecimal():
            return name, int(value)
    return "", 1


def connect() -> Communicator:
    """Join the ranks that the launcher started, importing mpi4py only if there are several.

    Returns
    -------
    Communicator
        Of all ranks; the same one each time.

    Raises
    ------
    ConfigError
        If the launcher started more processes than MPI joins: each world would build by itself.
    """
    global _connected  # noqa: PLW0603  a process has one world
    if _connected is None:
        name, count = world_size(os.environ)
        _connected = _join(name, count) if count > 1 else SerialCommunicator()
    return _connected


def connected() -> Communicator | None:
    """Return what `connect` returned before, or None."""
    return _connected


def _join(name: str, count: int) -> Communicator:
    try:
        from distcache.ranks.mpi import MpiCommunicator  # noqa: PLC0415
    except (ImportError, RuntimeError) as error:  # the latter if there is no MPI library
        raise ConfigError(
            f"{name} says that {count} processes were started, but mpi4py cannot be loaded "
            f"({error}): {how_to_install('mpi')}, and an MPI library"
        ) from error
    communicator = MpiCommunicator()
    if communicator.size != count:
        raise ConfigError(
            f"{name} says that {count} processes were started, but MPI joins {communicator.size}: "
            "mpi4py was loaded with another MPI than the launcher's. Start it with the launcher of "
            "its own MPI (srun --mpi=pmi2 for MPICH, srun --mpi=pmix for Open MPI, mpiexec), or "
            "set MPI4PY_MPIABI"
        )
    return communicator


def share_of_cores(communicator: Communicator, most: int = MOST_THREADS) -> int:
    """Return the smallest share that any rank has of the cores it may run on. Collective.

    The same on all ranks, from 1 to `most`. Ranks share the cores to which both are bound.
    """
    mine = (socket.gethostname(), sorted(os.sched_getaffinity(0)))
    everyone = communicator.allgather(mine, tuple[str, tuple[int, ...]], "cores of the ranks")
    sharing = Counter((host, tuple(cores)) for host, cores in everyone)
    return min(threads_of(len(cores), ranks, most) for (_, cores), ranks in sharing.items())


def threads_of(cores: int, ranks: int, most: int = MOST_THREADS) -> int:
    """Return the threads of each of several ranks that share cores, from 1 to `most`."""
    return max(min(cores // ranks, most), 1)
