"""The communicator of an MPI job."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any, Final, NoReturn, TypeVar

import msgspec
import numpy as np
from mpi4py import rc
from numpy.typing import NDArray

from distcache.errors import CollectiveTimeout
from distcache.ranks.communicator import Message
from distcache.storage.timeouts import limits

rc.thread_level = "funneled"  # only the main thread calls MPI
from mpi4py import MPI  # noqa: E402

Value = TypeVar("Value")

PIECE_BYTES: Final = 1 << 30  # bytes of one message: MPI counts are 32-bit before version 4
MIN_SLEEP: Final = 2e-5
TRANSIT_SLEEP: Final = 2e-4  # while arrays are in transit between nodes
MAX_SLEEP: Final = 1e-3  # uses little of a core, and hardly delays a step


class MpiCommunicator:
    """A group of ranks; by default all of the world.

    It waits without spinning, since ranks may share cores, except while arrays are in transit.
    """

    def __init__(self, group: MPI.Comm | None = None) -> None:
        self._group = MPI.COMM_WORLD.Dup() if group is None else group
        self._meeting = MPI.COMM_WORLD.Dup() if group is None else MPI.COMM_NULL
        self.rank: int = self._group.rank
        self.size: int = self._group.size
        self.waited = 0.0

    def broadcast(self, value: Any, kind: Any, what: str) -> Any:
        """Return rank 0's value on all ranks. Collective."""
        packed = msgspec.msgpack.encode(value) if self.rank == 0 else b""
        size = np.array([len(packed)], np.int64)
        self._wait([self._group.Ibcast(size, 0)], what)
        buffer = np.frombuffer(packed, np.uint8) if self.rank == 0 else np.empty(size[0], np.uint8)
        self._wait([self._group.Ibcast(buffer, 0)], what)
        return msgspec.msgpack.decode(buffer.data, type=kind)

    def allgather(self, value: Value, kind: Any, what: str) -> list[Value]:
        """Return the values of all ranks in their order, on all ranks. Collective."""
        packed = np.frombuffer(msgspec.msgpack.encode(value), np.uint8)
        sizes = np.empty(self.size, np.int64)
        self._wait([self._group.Iallgather(np.array([packed.size], np.int64), sizes)], what)
        ends = np.cumsum(sizes)
        together = self.allgather_bytes(packed, sizes, what)
        return [
            msgspec.msgpack.decode(together[end - size : end].data, type=kind)
            for end, size in zip(ends, sizes, strict=True)
        ]

    def all_to_all(
        self, values: NDArray[Any], counts: NDArray[np.int64], what: str
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Send a part of an array to every rank, and return what all have sent. Collective."""
        arriving = np.empty(self.size, np.int64)
        self._wait([self._group.Ialltoall(np.ascontiguousarray(counts), arriving)], what)
        received = np.empty(int(arriving.sum()), values.dtype)
        outgoing = np.split(values, np.cumsum(counts)[:-1])
        incoming = np.split(received, np.cumsum(arriving)[:-1])
        # Not by Ialltoallv, with which a shuffle of two ranks takes half as long again: MPI copies
        # a rank's own part through its buffers for messages.
        incoming[self.rank][:] = outgoing[self.rank]
        others = [rank for rank in range(self.size) if rank != self.rank]
        self.exchange(
            [Message(rank, outgoing[rank]) for rank in others],
            [Message(rank, incoming[rank]) for rank in others],
            what,
        )
        return received, arriving

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message], what: str) -> None:
        """Send and receive arrays; those between two ranks match in order. Collective."""
        requests = [
            self._group.Irecv([piece, MPI.BYTE], message.peer)
            for message in receives
            for piece in _pieces(message.data)
        ]
        requests += [
            self._group.Isend([piece, MPI.BYTE], message.peer)
            for message in sends
            for piece in _pieces(message.data)
        ]
        # Large messages through shared memory only progress while their ranks test them.
        self._wait(requests, what, longest_sleep=0.0)

    def allgather_bytes(
        self, own: NDArray[np.uint8], counts: NDArray[np.int64], what: str
    ) -> NDArray[np.uint8]:
        """Return the bytes of all ranks in their order, on all ranks. Collective."""
        ends = np.cumsum(counts)
        together = np.empty(int(ends[-1]), np.uint8)
        receive = [together, (counts, ends - counts), MPI.BYTE]
        # Long messages only progress while ranks test them.
        request = self._group.Iallgatherv([own, MPI.BYTE], receive)
        self._wait([request], what, longest_sleep=TRANSIT_SLEEP)
        return together

    def agents(self, node: str = "") -> MpiCommunicator | None:
        """Return the group of the first rank of each node; None on all other ranks. Collective."""
        names = self.allgather(node, str, "the names of nodes")
        if any(names):
            is_first = names.index(node) == self.rank
        else:
            node_group = self._group.Split_type(MPI.COMM_TYPE_SHARED)
            is_first = node_group.rank == 0
            node_group.Free()
        group = self._group.Split(0 if is_first else MPI.UNDEFINED, self.rank)
        return MpiCommunicator(group) if is_first else None

    def subgroup(self, ranks: Collection[int]) -> MpiCommunicator | None:
        """Return the group of some ranks, in their order; None on the others. Collective."""
        inside = self.rank in ranks
        group = self._group.Split(0 if inside else MPI.UNDEFINED, self.rank)
        return MpiCommunicator(group) if inside else None

    def barrier(self, seconds: float) -> bool:
        """Return whether all ranks of the world call this within some seconds of one another."""
        request = self._meeting.Ibarrier()
        end = time.monotonic() + seconds
        while not request.Test():
            if time.monotonic() > end:
                return False
            time.sleep(MAX_SLEEP)
        return True

    def abort(self, exit_code: int) -> NoReturn:
        """Abort all ranks. Not collective."""
        MPI.COMM_WORLD.Abort(exit_code)
        raise SystemExit(exit_code)

    def close(self) -> None:
        """Finalize MPI. Collective."""
        MPI.Finalize()

    def _wait(
        self, requests: list[MPI.Request], what: str, longest_sleep: float = MAX_SLEEP
    ) -> None:
        begin, longest = time.monotonic(), limits().collective
        pause = min(MIN_SLEEP, longest_sleep)
        # A signal may end this. The traceback then keeps the buffers of pending requests alive,
        # and the process ends without releasing it.
        while not MPI.Request.Testall(requests):
            if time.monotonic() - begin > longest:
                raise CollectiveTimeout(
                    f"waited {longest:.0f} s for the other ranks ({what}); look for a rank that is "
                    "stopped or a filesystem that hangs"
                )
            time.sleep(pause)
            pause = min(2 * pause, longest_sleep)
        self.waited += time.monotonic() - begin


def _pieces(data: NDArray[Any], size: int = PIECE_BYTES) -> list[NDArray[np.uint8]]:
    assert data.flags.c_contiguous, "a copy would be sent, or filled"
    flat = data.reshape(-1).view(np.uint8)
    return [flat[begin : begin + size] for begin in range(0, flat.size, size)]
