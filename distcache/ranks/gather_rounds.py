"""Bytes that all agents get, though each is read by one of them only.

The bytes are chunks, in an order that all agents know. A round is some successive chunks: each
agent reads a share of them, and the MPI library's allgather, a ring for long messages, gives them
to all. While a round is on its way, the next one is read, and the previous one is written. So an
agent holds the bytes of some three rounds, however many agents and bytes there are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from distcache.errors import BuildInterrupted, CollectiveTimeout
from distcache.ranks.communicator import Communicator
from distcache.storage.watchdog import abandon_thread, has_abandoned_thread

ROUND_BYTES: Final = 64 << 20  # bytes of a round, unless one chunk has more
MIN_CHUNK: Final = 2 << 20
MAX_CHUNK: Final = 8 << 20
READ_THREADS: Final = 2  # chunks that an agent reads at a time

Buffer = NDArray[np.uint8]


def chunk_bytes(agents: int) -> int:
    """Return the size of chunks with which all agents have something to read in a round."""
    return max(MIN_CHUNK, min(MAX_CHUNK, ROUND_BYTES // agents))


def gather_rounds(
    agents: Communicator,
    sizes: Sequence[int],
    read: Callable[[int, Buffer], None],
    write: Callable[[int, Buffer], None],
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
    write : callable
        Takes each chunk, in their order; called from one thread.
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
        On all agents the same, the first that `read` or `write` raised on any.
    CollectiveTimeout
        If the others do not answer.
    """
    readers = range(agents.size) if readers is None else readers
    rounds = list(_cut_rounds(sizes))
    reading = ThreadPoolExecutor(threads, thread_name_prefix="reading")
    writing = ThreadPoolExecutor(1, thread_name_prefix="writing")

    def start(number: int) -> tuple[Buffer, list[Future[None]]]:
        """Read this agent's share of a round into one array."""
        if number == len(rounds) or agents.rank not in readers:
            return np.empty(0, np.uint8), []
        own = _shares(sizes, rounds[number], len(readers))[readers.index(agents.rank)]
        ends = np.cumsum([sizes[chunk] for chunk in own])
        data = np.empty(ends[-1] if len(own) else 0, np.uint8)
        places = np.split(data, ends[:-1]) if len(own) else []
        return data, [reading.submit(read, *each) for each in zip(own, places, strict=True)]

    try:
        written: list[Future[None]] = []
        own, read_ahead = start(0)
        for number, chunks in enumerate(rounds):
            agree(functools.partial(_finish, [*written, *read_ahead]), "bringing bytes")
            mine = own
            own, read_ahead = start(number + 1)
            counts = np.zeros(agents.size, np.int64)
            for reader, share in zip(readers, _shares(sizes, chunks, len(readers)), strict=True):
                counts[reader] = sum(sizes[chunk] for chunk in share)
            together = agents.allgather_bytes(mine, counts, "bringing bytes")
            ends = np.cumsum([sizes[chunk] for chunk in chunks])
            arrived = zip(chunks, np.split(together, ends[:-1]), strict=True)
            written = [writing.submit(write, *each) for each in arrived]
            advance(together.size)
        agree(functools.partial(_finish, written), "writing what has arrived")
    except (BuildInterrupted, CollectiveTimeout):
        abandon_thread()  # a read that hangs must not keep this agent from ending
        raise
    finally:
        for pool in (reading, writing):
            pool.shutdown(wait=not has_abandoned_thread(), cancel_futures=True)


def _finish(pending: Sequence[Future[None]]) -> None:
    """Wait until all is read and written, also after an error: one may hang. Then raise it."""
    wait(pending)
    for each in pending:
        each.result()


def _cut_rounds(sizes: Sequence[int]) -> Iterator[range]:
    """Yield the chunks of each round."""
    begin = nbytes = 0
    for chunk, size in enumerate(sizes):
        if chunk > begin and nbytes + size > ROUND_BYTES:
            yield range(begin, chunk)
            begin, nbytes = chunk, 0
        nbytes += size
    if begin < len(sizes):
        yield range(begin, len(sizes))


def _shares(sizes: Sequence[int], chunks: range, readers: int) -> list[range]:
    """Return the share of chunks that each reader reads, of about as many bytes as the others."""
    ends = np.cumsum([sizes[chunk] + 1 for chunk in chunks])  # chunks without bytes count, too
    wanted = int(ends[-1]) * np.arange(1, readers + 1) // readers
    bounds = chunks.start + np.searchsorted(ends, wanted, "right")
    return [
        range(int(a), int(b)) for a, b in zip([chunks.start, *bounds[:-1]], bounds, strict=True)
    ]
