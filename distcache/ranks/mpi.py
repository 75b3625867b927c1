"""The communicator of an MPI job."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any, Final, NoReturn, TypeVar

import msgspec
import numpy as np
from mpi4py import rc
from numpy.typing import NDArray

from distcache.errors import OutOfStep
from distcache.ranks.communicator import Message
from distcache.timeouts import limits

rc.thread_level = "funneled"  # worker threads compute and write, the main thread speaks MPI
from mpi4py import MPI  # noqa: E402

__all__ = ["MpiCommunicator"]

Value = TypeVar("Value")

PIECE: Final = 1 << 30  # bytes of one message: MPI counts are 32-bit before version 4
SHORTEST_SLEEP: Final = 2e-5
LONGEST_SLEEP: Final = 1e-3  # a core is hardly used, and a step hardly delayed


class _Broadcast:
    """Broadcasts that have been started."""

    def __init__(self, requests: list[MPI.Request]) -> None:
        self._requests = requests

    def done(self) -> bool:
        return bool(MPI.Request.Testall(self._requests))


class MpiCommunicator:
    """A group of ranks; by default all of the world.

    It waits without spinning, since ranks may share cores; only arrays are looked after all the
    time while they are on their way.
    """

    def __init__(self, group: MPI.Comm | None = None) -> None:
        self._group = MPI.COMM_WORLD.Dup() if group is None else group
        self._meeting = MPI.COMM_WORLD.Dup() if group is None else MPI.COMM_NULL
        self.rank: int = self._group.rank
        self.size: int = self._group.size
        self.waited = 0.0
        self.waiting = False

    def broadcast(self, value: Any, kind: Any, what: str) -> Any:
        """Return rank 0's value on all ranks. Collective."""
        packed = msgspec.msgpack.encode(value) if self.rank == 0 else b""
        size = np.array([len(packed)], np.int64)
        self._wait([self._group.Ibcast(size, 0)], what)
        buffer = np.frombuffer(packed, np.uint8) if self.rank == 0 else np.empty(size[0], np.uint8)
        self._wait([self._group.Ibcast(buffer, 0)], what)
        return msgspec.msgpack.decode(buffer.data, type=kind)

    def gather_all(self, value: Value, kind: Any, what: str) -> list[Value]:
        """Return the values of all ranks in their order, on all ranks. Collective."""
        packed = np.frombuffer(msgspec.msgpack.encode(value), np.uint8)
        sizes = np.empty(self.size, np.int64)
        self._wait([self._group.Iallgather(np.array([packed.size], np.int64), sizes)], what)
        ends = np.cumsum(sizes)
        together = np.empty(int(ends[-1]), np.uint8)
        receive = [together, (sizes, ends - sizes), MPI.BYTE]
        self._wait([self._group.Iallgatherv([packed, MPI.BYTE], receive)], what)
        return [
            msgspec.msgpack.decode(together[end - size : end].data, type=kind)
            for end, size in zip(ends, sizes, strict=True)
        ]

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message], what: str) -> None:
        """Send arrays and fill others; those between two ranks match in order. Collective."""
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
        # Large messages through shared memory only move while their ranks look at them.
        self._wait(requests, what, longest_sleep=0.0)

    def start_broadcast(self, data: NDArray[np.uint8], root: int) -> _Broadcast:
        """Begin to bring bytes from a rank to all. Collective, in the same order on all ranks."""
        return _Broadcast([self._group.Ibcast([piece, MPI.BYTE], root) for piece in _pieces(data)])

    def agents(self, node: str = "") -> MpiCommunicator | None:
        """Return the group of the first rank of each node; None on all other ranks. Collective."""
        names = self.gather_all(node, str, "the names of nodes")
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

    def meet(self, seconds: float) -> bool:
        """Tell whether all ranks of the world call this within some seconds of one another."""
        request = self._meeting.Ibarrier()
        end = time.monotonic() + seconds
        while not request.Test():
            if time.monotonic() > end:
                return False
            time.sleep(LONGEST_SLEEP)
        return True

    def abort(self, exit_code: int) -> NoReturn:
        """End all ranks at once. Not collective."""
        MPI.COMM_WORLD.Abort(exit_code)
        raise SystemExit(exit_code)

    def close(self) -> None:
        """Leave MPI. Collective."""
        MPI.Finalize()

    def _wait(
        self, requests: list[MPI.Request], what: str, longest_sleep: float = LONGEST_SLEEP
    ) -> None:
        begin, longest = time.monotonic(), limits().collective
        pause = min(SHORTEST_SLEEP, longest_sleep)
        self.waiting = True
        # A signal may end this. The buffers of what is on its way then live as long as the
        # traceback that has them, and the process ends without leaving it.
        while not MPI.Request.Testall(requests):
            if time.monotonic() - begin > longest:
                raise OutOfStep(
                    f"waited {longest:.0f} s for the other ranks ({what}); look for a rank that is "
                    "stopped or a filesystem that hangs"
                )
            time.sleep(pause)
            pause = min(2 * pause, longest_sleep)
        self.waiting = False
        self.waited += time.monotonic() - begin


def _pieces(data: NDArray[Any]) -> list[NDArray[np.uint8]]:
    assert data.flags.c_contiguous, "a copy would be sent, or filled"
    flat = data.reshape(-1).view(np.uint8)
    return [flat[begin : begin + PIECE] for begin in range(0, flat.size, PIECE)]
