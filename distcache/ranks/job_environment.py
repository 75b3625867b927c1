"""What launchers and schedulers set for a process of a job: the only reader of their variables."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Mapping
from typing import Final

NODE_NAME: Final = "DISTCACHE_NODE_NAME"
ALONE: Final = "DISTCACHE_ALONE"
# Set by Open MPI's mpirun, by MPICH's mpiexec and srun --mpi=pmi2, and by srun; the closest first.
# Not SLURM_NTASKS, which an allocation has too, where no step has been started.
WORLD_VARIABLES: Final = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
# Directories of a job on its node, which are shared with other users.
SCRATCH: Final = ("SLURM_TMPDIR", "TMPDIR")


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
