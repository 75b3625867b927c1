"""Bytes that all agents get, though each is read by one of them only.

The bytes are chunks, in an order that all agents know. A round is some successive chunks: each
agent reads a run of them, and the MPI library's allgather, a ring for long messages, gives them to
all. While a round is on its way, the next one is read, and a sink writes the one before. So an
agent holds the bytes of some three rounds, however many agents and bytes there are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from distcache.errors import BuildInterrupted, CollectiveTimeout
from distcache.ranks.communicator import Communicator
from distcache.storage.watchdog import abandon_thread, has_abandoned_thread

ROUND: Final = 64 << 20  # bytes of a round, unless one chunk has more
MIN_CHUNK: Final = 2 << 20
MAX_CHUNK: Final = 8 << 20
READ_THREADS: Final = 2  # chunks that an agent reads at a time

Buffer = NDArray[np.uint8]


class ChunkSink(Protocol):
    """Takes chunks that have arrived, in their order."""

    def give(self, chunk: int, data: Buffer) -> None:
        """Take a chunk, without waiting."""
        ...

    def settle(self) -> None:
        """Wait until all chunks that were given are taken care of; may raise."""
        ...


def chunk_bytes(agents: int) -> int:
    """Return the size of chunks with which all agents have something to read in a round."""
    return max(MIN_CHUNK, min(MAX_CHUNK, ROUND // agents))


def gather_rounds(
    agents: Communicator,
    sizes: Sequence[int],
    read: Callable[[int, Buffer], None],
    sink: ChunkSink,
    advance: Callable[[float], None],
    agree: Callable[[Callable[[], Any], str], Any],
    threads: int = READ_THREADS,
    readers: Sequence[int] | None = None,
) -> None:
    """Give all agents all chunks, each read by one agent. Collective.

    Parameters
    ----------
    agents : Communicator
        All that get the chunks.
    sizes : sequence of int
        Bytes of each chunk, the same on all.
    read : callable
        Fills an array with a chunk; called from threads.
    sink : ChunkSink
        Takes all chunks.
    advance : callable
        Receives the bytes that have arrived.
    agree : callable
        Runs an action that may fail or hang, as `on_all_ranks` does.
    threads : int
        Chunks that an agent reads at a time.
    readers : sequence of int or None
        Agents that read, the same on all; by default all of them.

    Raises
    ------
    DistcacheError
        On all agents the same, the first that `read` or the sink raised on any.
    CollectiveTimeout
        If the others do not answer.
    """
    readers = range(agents.size) if readers is None else readers
    rounds = list(_cut_rounds(sizes))
    pool = ThreadPoolExecutor(threads, thread_name_prefix="reading")

    def start(number: int) -> _OwnRun | None:
        if number == len(rounds) or agents.rank not in readers:
            return None
        own = _runs(sizes, rounds[number], len(readers))[readers.index(agents.rank)]
        return _OwnRun([sizes[chunk] for chunk in own], own, read, pool)

    try:
        ahead = start(0)
        for number, chunks in enumerate(rounds):
            own = agree(functools.partial(_take, ahead, sink), "bringing bytes")
            ahead = start(number + 1)
            counts = np.zeros(agents.size, np.int64)
            for reader, run in zip(readers, _runs(sizes, chunks, len(readers)), strict=True):
                counts[reader] = sum(sizes[chunk] for chunk in run)
            together = agents.allgather_bytes(own, counts, "bringing bytes")
            ends = np.cumsum([sizes[chunk] for chunk in chunks])
            for chunk, data in zip(chunks, np.split(together, ends[:-1]), strict=True):
                sink.give(chunk, data)
            advance(together.size)
        agree(sink.settle, "writing what has arrived")
    except (BuildInterrupted, CollectiveTimeout):
        abandon_thread()  # a read that hangs must not keep this agent from ending
        raise
    finally:
        pool.shutdown(wait=not has_abandoned_thread(), cancel_futures=True)


class _OwnRun:
    """The chunks of a round that this agent reads, side by side in one array."""

    def __init__(
        self,
        sizes: Sequence[int],
        chunks: Sequence[int],
        read: Callable[[int, Buffer], None],
        pool: ThreadPoolExecutor,
    ) -> None:
        self.data = np.empty(sum(sizes), np.uint8)
        places = np.split(self.data, np.cumsum(sizes)[:-1]) if len(sizes) else []
        self.pending: list[Future[None]] = [
            pool.submit(read, chunk, place) for chunk, place in zip(chunks, places, strict=True)
        ]


def _take(share: _OwnRun | None, sink: ChunkSink) -> Buffer:
    """Return what this agent has read, once the round before is written."""
    sink.settle()
    if share is None:
        return np.empty(0, np.uint8)
    for pending in share.pending:
        pending.result()
    return share.data


def _cut_rounds(sizes: Sequence[int]) -> Iterator[range]:
    """Yield the chunks of each round."""
    begin = nbytes = 0
    for chunk, size in enumerate(sizes):
        if chunk > begin and nbytes + size > ROUND:
            yield range(begin, chunk)
            begin, nbytes = chunk, 0
        nbytes += size
    if begin < len(sizes):
        yield range(begin, len(sizes))


def _runs(sizes: Sequence[int], chunks: range, readers: int) -> list[range]:
    """Return the run of chunks that each reader reads, of about as many bytes as the others."""
    ends = np.cumsum([sizes[chunk] + 1 for chunk in chunks])  # chunks without bytes count, too
    shares = int(ends[-1]) * np.arange(1, readers + 1) // readers
    bounds = chunks.start + np.searchsorted(ends, shares, "right")
    return [
        range(int(a), int(b)) for a, b in zip([chunks.start, *bounds[:-1]], bounds, strict=True)
    ]
