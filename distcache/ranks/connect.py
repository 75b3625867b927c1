"""Join the ranks that a launcher has started."""

from __future__ import annotations

import contextlib
import faulthandler
import os
from collections.abc import Iterator
from typing import Final

from distcache.errors import ConfigError
from distcache.extras import how_to_install
from distcache.ranks.communicator import Communicator, SerialCommunicator
from distcache.ranks.job_environment import ALONE, has_lost_launcher, world_size
from distcache.storage.timeouts import limits

HOW_ALONE: Final = (
    "if this process is none of the launcher's ranks, but a child of one or one of torchrun's, "
    f"set {ALONE}=1 to run it alone"
)

_connected: Communicator | None = None


def connect() -> Communicator:
    """Join the ranks that the launcher started, importing mpi4py only if there are several.

    Returns
    -------
    Communicator
        Group of all ranks; the same object each time.

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
    if has_lost_launcher(os.environ):
        raise ConfigError(
            f"{name} says that {count} processes were started, but the connection to the launcher "
            f"(PMI_FD) is closed in this one; {HOW_ALONE}"
        )
    with _bounded():
        communicator = _world(name, count)
    if communicator.size != count:
        raise ConfigError(
            f"{name} says that {count} processes were started, but MPI joins {communicator.size}: "
            "mpi4py was loaded with another MPI than the launcher's. Start it with the launcher of "
            "its own MPI (srun --mpi=pmi2 for MPICH, srun --mpi=pmix for Open MPI, mpiexec), or "
            f"set MPI4PY_MPIABI; {HOW_ALONE}"
        )
    return communicator


@contextlib.contextmanager
def _bounded() -> Iterator[None]:
    """End this process, and print where it is, if MPI does not join the ranks in time.

    It does so in a call that lets no thread of Python run. The bound takes the place of any other
    that `faulthandler` has in this process.
    """
    faulthandler.dump_traceback_later(limits().stalled, exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _world(name: str, count: int) -> Communicator:
    try:
        from distcache.ranks.mpi import MpiCommunicator  # noqa: PLC0415
    except (ImportError, RuntimeError) as error:  # the latter if there is no MPI library
        raise ConfigError(
            f"{name} says that {count} processes were started, but mpi4py cannot be loaded "
            f"({error}): {how_to_install('mpi')}, and an MPI library; {HOW_ALONE}"
        ) from error
    return MpiCommunicator()
