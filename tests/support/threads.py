"""Ranks as threads of one process: whole builds of several ranks in a fraction of a second."""

from __future__ import annotations

import contextlib
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NoReturn, TypeVar
from unittest import mock

import msgspec
import numpy as np
from numpy.typing import NDArray

from distcache.errors import BuildInterrupted
from distcache.ranks.communicator import Communicator, Message

Result = TypeVar("Result")
LIMIT = 60.0  # seconds, after which ranks have hung
_own = threading.local()
decoding = threading.Lock()  # msgspec crashes if two threads are the first to decode a type


class Ended(BuildInterrupted):
    """The job was ended, by this rank or another one: the thread is what a killed process is."""


def rank_of_thread() -> int | None:
    """Return the rank that this thread works for; threads that it starts work for it, too."""
    found: int | None = getattr(_own, "rank", None)
    return found


class _World:
    """What all groups of a job have in common."""

    def __init__(self) -> None:
        self.groups: list[_Group] = []
        self.aborted: list[tuple[int, int]] = []
        self.lock = threading.Lock()

    def abort(self, rank: int, exit_code: int) -> None:
        with self.lock:
            self.aborted.append((rank, exit_code))
            for group in self.groups:
                group.barrier.abort()


class _Group:
    """What the ranks of one communicator share."""

    def __init__(self, world: _World, size: int) -> None:
        self.world = world
        self.size = size
        self.slots: list[Any] = [None] * size
        self.barrier = threading.Barrier(size)
        self.broadcasts: dict[int, NDArray[np.uint8]] = {}
        with world.lock:
            world.groups.append(self)
            if world.aborted:
                self.barrier.abort()


class ThreadCommunicator:
    """A rank of a job whose ranks are threads."""

    def __init__(self, group: _Group, rank: int) -> None:
        self._group = group
        self.rank = rank
        self.size = group.size
        self.waited = 0.0

    def _share(self, value: Any) -> list[Any]:
        """Return the values of all ranks."""
        try:
            self._group.slots[self.rank] = value
            self._group.barrier.wait(LIMIT)
            found = list(self._group.slots)
            self._group.barrier.wait(LIMIT)
        except threading.BrokenBarrierError as error:
            raise Ended("the job was ended") from error
        return found

    def broadcast(self, value: Any, kind: Any, what: str) -> Any:
        """Return rank 0's value on all ranks."""
        del what
        packed = self._share(msgspec.msgpack.encode(value) if self.rank == 0 else b"")
        with decoding:
            return msgspec.msgpack.decode(packed[0], type=kind)

    def allgather(self, value: Any, kind: Any, what: str) -> list[Any]:
        """Return the values of all ranks."""
        del what
        packed = self._share(msgspec.msgpack.encode(value))
        with decoding:
            return [msgspec.msgpack.decode(entry, type=kind) for entry in packed]

    def all_to_all(
        self, values: NDArray[Any], counts: NDArray[np.int64], what: str
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Send a part of an array to every rank, and return what all have sent."""
        assert values.shape == (counts.sum(),), what
        parts = np.split(values.copy(), np.cumsum(counts)[:-1])
        mine = [sent[self.rank] for sent in self._share(parts)]
        return np.concatenate(mine), np.array([len(part) for part in mine], np.int64)

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message], what: str) -> None:
        """Send arrays and fill others; those between two ranks match in order."""
        shares = self._share([(entry.peer, entry.data.copy()) for entry in sends])
        mine = [[data for peer, data in share if peer == self.rank] for share in shares]
        for entry in receives:
            data = mine[entry.peer].pop(0)
            assert data.nbytes == entry.data.nbytes, what
            entry.data.reshape(-1).view(np.uint8)[:] = data.reshape(-1).view(np.uint8)
        assert not any(mine), f"{what}: more was sent than received"

    def allgather_bytes(
        self, own: NDArray[np.uint8], counts: NDArray[np.int64], what: str
    ) -> NDArray[np.uint8]:
        """Return the bytes of all ranks."""
        found = np.concatenate(self._share(own.copy()))
        assert len(own) == counts[self.rank], what
        assert len(found) == counts.sum(), what
        return found

    def agents(self, node: str = "") -> Communicator | None:
        """Return the group of the first rank of each node."""
        names = self.allgather(node or str(self.rank), str, "nodes")
        return self.subgroup({names.index(name) for name in names})

    def subgroup(self, ranks: Collection[int]) -> Communicator | None:
        """Return the group of some ranks; None on the others."""
        first = min(ranks, default=-1)
        made = _Group(self._group.world, len(ranks)) if self.rank == first else None
        shared = self._share(made)
        if self.rank not in ranks:
            return None
        return ThreadCommunicator(shared[first], sorted(ranks).index(self.rank))

    def barrier(self, seconds: float) -> bool:
        """Tell that all are here."""
        del seconds
        return True

    def abort(self, exit_code: int) -> NoReturn:
        """End all ranks."""
        self._group.world.abort(self.rank, exit_code)
        raise Ended("this rank has ended the job")

    def close(self) -> None:
        """Do nothing."""


@contextlib.contextmanager
def _inherited_ranks() -> Iterator[None]:
    """Let each thread work for the rank that starts it, until the ranks have ended."""
    original = threading.Thread.start

    def start(self: threading.Thread) -> None:
        if (rank := rank_of_thread()) is not None:
            run = self.run

            def run_for_rank() -> None:
                _own.rank = rank
                run()

            self.run = run_for_rank  # type: ignore[method-assign]
        original(self)

    with mock.patch.object(threading.Thread, "start", start):
        yield


def run_ranks(
    size: int, action: Callable[[ThreadCommunicator], Result], limit: float = LIMIT
) -> tuple[list[Result | BaseException], list[tuple[int, int]]]:
    """Run something on all ranks of a job; those that hang fail the test.

    Returns
    -------
    outcomes : list
        What each rank returned or raised.
    aborted : list of (int, int)
        The ranks that have ended the job, and their exit codes.
    """
    world = _World()
    group = _Group(world, size)
    outcomes: list[Any] = [None] * size

    def run(rank: int) -> None:
        _own.rank = rank
        try:
            outcomes[rank] = action(ThreadCommunicator(group, rank))
        except BaseException as error:  # noqa: BLE001  it is the outcome
            outcomes[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    with _inherited_ranks():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(limit)
    if any(thread.is_alive() for thread in threads):
        frames = sys._current_frames()
        stacks = [
            "".join(traceback.format_stack(frames[thread.ident]))
            for thread in threads
            if thread.ident in frames
        ]
        world.abort(-1, -1)
        raise TimeoutError("ranks hang:\n" + "\n\n".join(stacks))
    return outcomes, world.aborted
