"""What the ranks of a job say to one another, and a communicator for a single process.

Values travel as msgpack of a stated type and arrays as raw bytes; nothing is ever unpickled.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NoReturn, Protocol, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from distcache.errors import ConfigError

__all__ = [
    "Communicator",
    "Message",
    "Pending",
    "SerialCommunicator",
    "connect",
    "connected",
    "world_size",
]

Value = TypeVar("Value")

# Set by Open MPI's mpirun, by MPICH's mpiexec and srun --mpi=pmi2, and by srun; the closest first.
# Not SLURM_NTASKS, which an allocation has too, where no step has been started.
WORLD_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


class Message(msgspec.Struct, frozen=True):
    """An array to send to, or to fill from, another rank."""

    peer: int
    data: NDArray[Any]


class Pending(Protocol):
    """Something that goes on while its starter does other things."""

    def done(self) -> bool:
        """Tell whether it has ended, and move it on. Not collective."""
        ...


class Communicator(Protocol):
    """A group of ranks. All methods except `meet` and `abort` are collective.

    `what` says in a few words what is waited for, and stands in the error when it does not come.

    Attributes
    ----------
    rank, size : int
        Which of how many this is.
    waited : float
        Seconds so far that this rank has waited for the others, or for what they sent.
    waiting : bool
        Whether it waits now.
    """

    rank: int
    size: int
    waited: float
    waiting: bool

    def broadcast(self, value: Any, kind: Any, what: str) -> Any:
        """Return rank 0's value, of a kind that msgpack knows, on all ranks. Collective."""
        ...

    def gather_all(self, value: Value, kind: Any, what: str) -> list[Value]:
        """Return the values of all ranks in their order, on all ranks. Collective."""
        ...

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message], what: str) -> None:
        """Send arrays and fill others; those between two ranks match in order. Collective."""
        ...

    def start_broadcast(self, data: NDArray[np.uint8], root: int) -> Pending:
        """Begin to bring bytes from a rank to all; `data` is theirs until it is done. Collective.

        All ranks begin their broadcasts in the same order; several may go on at a time.
        """
        ...

    def agents(self, node: str = "") -> Communicator | None:
        """Return the group of the first rank of each node; None on all other ranks. Collective.

        Ranks that share memory are on one node; tests give each rank the name of a node instead.
        """
        ...

    def subgroup(self, ranks: Collection[int]) -> Communicator | None:
        """Return the group of some ranks, in their order; None on the others. Collective."""
        ...

    def meet(self, seconds: float) -> bool:
        """Tell whether all ranks of the world call this within some seconds of one another.

        Unlike all else it may be called whatever the others are doing; but only once, and not of a
        group of agents.
        """
        ...

    def abort(self, exit_code: int) -> NoReturn:
        """End all ranks at once. Not collective."""
        ...

    def close(self) -> None:
        """Leave MPI, so that the process may end without the interpreter's help. Collective."""
        ...


class _Done:
    def done(self) -> bool:
        return True


class SerialCommunicator:
    """The communicator of a single process."""

    rank = 0
    size = 1
    waited = 0.0
    waiting = False

    def broadcast(self, value: Any, kind: Any, what: str) -> Any:
        """Return the value."""
        del kind, what
        return value

    def gather_all(self, value: Value, kind: Any, what: str) -> list[Value]:
        """Return the one value."""
        del kind, what
        return [value]

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message], what: str) -> None:
        """Do nothing: a rank keeps what is its own and sends it to nobody."""
        del what
        assert not sends
        assert not receives

    def start_broadcast(self, data: NDArray[np.uint8], root: int) -> Pending:
        """Return what is done already."""
        del data, root
        return _Done()

    def agents(self, node: str = "") -> Communicator:
        """Return itself: the one process is its node's agent."""
        del node
        return self

    def subgroup(self, ranks: Collection[int]) -> Communicator | None:
        """Return itself, or None if it is not in the group."""
        return self if 0 in ranks else None

    def meet(self, seconds: float) -> bool:
        """Tell that all are here."""
        del seconds
        return True

    def abort(self, exit_code: int) -> NoReturn:
        """End the process."""
        sys.exit(exit_code)

    def close(self) -> None:
        """Do nothing."""


_connected: Communicator | None = None


def world_size(environment: Mapping[str, str]) -> tuple[str, int]:
    """Return the variable that tells how many processes the launcher started, and its value.

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
        If the launcher started another number of processes than MPI joins: each of several worlds
        would build by itself.
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
    except ImportError as error:
        raise ConfigError(
            f"{name} says that {count} processes were started, but mpi4py cannot be imported "
            f"({error}); install distcache[mpi] and an MPI library"
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
