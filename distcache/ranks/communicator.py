"""The collectives of a job's ranks, and a communicator for a single process.

Values are sent as msgpack of a stated type, arrays as raw bytes; nothing is ever unpickled.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import Any, NoReturn, Protocol, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

Value = TypeVar("Value")


class Message(msgspec.Struct, frozen=True):
    """An array to send to, or to fill from, another rank."""

    peer: int
    data: NDArray[Any]


class Communicator(Protocol):
    """A group of ranks. All methods except `barrier` and `abort` are collective.

    `what` says in a few words what is waited for; the error of a timeout has it.
    """

    # number of this rank, and number of ranks
    rank: int
    size: int
    waited: float  # seconds so far that this rank has waited for others

    def broadcast(self, value: Any, kind: Any, what: str) -> Any:
        """Return rank 0's value, of a kind that msgpack knows, on all ranks. Collective."""
        ...

    def allgather(self, value: Value, kind: Any, what: str) -> list[Value]:
        """Return the values of all ranks in their order, on all ranks. Collective."""
        ...

    def all_to_all(
        self, values: NDArray[Any], counts: NDArray[np.int64], what: str
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Send a part of an array to every rank, and return what all have sent. Collective.

        Parameters
        ----------
        values : ndarray, shape (sum of counts,)
            Values in the order of the ranks; the same dtype on all.
        counts : ndarray of int64, shape (ranks,)
            Number of values for each rank.
        what : str
            Description for messages.

        Returns
        -------
        values : ndarray
            Values in the order of the ranks that sent them.
        counts : ndarray of int64, shape (ranks,)
            Number of values that each rank has sent.
        """
        ...

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message], what: str) -> None:
        """Send and receive arrays; those between two ranks match in order. Collective."""
        ...

    def allgather_bytes(
        self, own: NDArray[np.uint8], counts: NDArray[np.int64], what: str
    ) -> NDArray[np.uint8]:
        """Return the bytes of all ranks in their order, on all ranks. Collective.

        Parameters
        ----------
        own : ndarray of uint8
            Bytes of this rank; less than 2 GiB of all ranks together.
        counts : ndarray of int64, shape (ranks,)
            Bytes of each rank, the same on all.
        what : str
            Description for messages.
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

    def barrier(self, seconds: float) -> bool:
        """Return whether all ranks of the world call this within some seconds of one another.

        Unlike all others it may be called whatever the other ranks do, but only once, and not on a
        subgroup.
        """
        ...

    def abort(self, exit_code: int) -> NoReturn:
        """Abort all ranks. Not collective."""
        ...

    def close(self) -> None:
        """Finalize MPI, so that the process may end although a thread hangs. Collective."""
        ...


class SerialCommunicator:
    """The communicator of a single process."""

    rank = 0
    size = 1
    waited = 0.0

    def broadcast(self, value: Any, kind: Any, what: str) -> Any:
        """Return the value."""
        del kind, what
        return value

    def allgather(self, value: Value, kind: Any, what: str) -> list[Value]:
        """Return the one value."""
        del kind, what
        return [value]

    def all_to_all(
        self, values: NDArray[Any], counts: NDArray[np.int64], what: str
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return what was sent."""
        del what
        return values, counts

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message], what: str) -> None:
        """Do nothing: a rank sends nothing to itself."""
        del what
        assert not sends
        assert not receives

    def allgather_bytes(
        self, own: NDArray[np.uint8], counts: NDArray[np.int64], what: str
    ) -> NDArray[np.uint8]:
        """Return the bytes of the one rank."""
        del counts, what
        return own

    def agents(self, node: str = "") -> Communicator:
        """Return itself: the one process is its node's agent."""
        del node
        return self

    def subgroup(self, ranks: Collection[int]) -> Communicator | None:
        """Return itself, or None if it is not in the group."""
        return self if 0 in ranks else None

    def barrier(self, seconds: float) -> bool:
        """Return that all ranks are here."""
        del seconds
        return True

    def abort(self, exit_code: int) -> NoReturn:
        """End the process."""
        sys.exit(exit_code)

    def close(self) -> None:
        """Do nothing."""
