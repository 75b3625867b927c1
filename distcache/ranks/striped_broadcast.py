"""A striped broadcast: agents read disjoint chunks and broadcast them, so that each is read once.

Chunk p is read by reader p mod readers, of which by default every agent is one, and broadcast to
all. Every agent starts the broadcasts in the order of the chunks, at most `WINDOW` at a time;
threads read its own next chunks ahead, and a sink takes what has arrived. So an agent holds a
bounded number of buffers, however many agents and bytes there are.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from distcache.errors import (
    BuildInterrupted,
    CollectiveTimeout,
    DistcacheError,
    error_from_exit_code,
)
from distcache.ranks.communicator import Communicator, Pending
from distcache.storage.timeouts import limits
from distcache.storage.watchdog import abandon_thread

CHUNK: Final = 8 << 20  # bytes
WINDOW: Final = 4  # broadcasts at a time
AHEAD: Final = 2  # own chunks read ahead
TRAILER: Final = (
    1024  # bytes after a chunk: the error of the agent that could not read it, or zeros
)
TEXT: Final = 8  # byte of the trailer at which the error's words begin
SHORTEST_SLEEP: Final = 2e-5
LONGEST_SLEEP: Final = 2e-4  # pieces of a chunk are passed on when an agent looks
IDLE_SLEEP: Final = 1e-3

Buffer = NDArray[np.uint8]


class ChunkSink(Protocol):
    """Takes chunks that have arrived, in their order."""

    def has_room(self) -> bool:
        """Return whether another chunk may be broadcast."""
        ...

    def give(self, chunk: int, data: Buffer) -> None:
        """Take a chunk; the array is the sink's."""
        ...

    def close(self) -> None:
        """Wait until all chunks are taken care of."""
        ...


def reader_of(chunk: int, readers: Sequence[int]) -> int:
    """Return the agent that reads a chunk."""
    return readers[chunk % len(readers)]


def _pack_error(error: DistcacheError, trailer: Buffer) -> None:
    """Write an error into a trailer: exit code + 1, length of its words, the words."""
    words = str(error).encode("utf-8", "backslashreplace")[: TRAILER - TEXT]
    head = (error.exit_code + 1).to_bytes(4, "little") + len(words).to_bytes(4, "little")
    trailer[: TEXT + len(words)] = np.frombuffer(head + words, np.uint8)


def _unpack_error(trailer: Buffer) -> DistcacheError | None:
    """Return the error of a trailer, if it has one."""
    code = int.from_bytes(trailer[:4].tobytes(), "little")
    if not code:
        return None
    size = int.from_bytes(trailer[4:TEXT].tobytes(), "little")
    words = trailer[TEXT : TEXT + size].tobytes().decode("utf-8", "replace")
    return error_from_exit_code(code - 1, words)


class _Reader:
    """Reads this agent's chunks ahead of their broadcasts."""

    def __init__(
        self,
        own: Sequence[int],
        sizes: Sequence[int],
        read: Callable[[int, Buffer], None],
        ahead: int,
        together: int,
    ) -> None:
        self._left = collections.deque(own)
        self._sizes = sizes
        self._read = read
        self._ahead, self._together = ahead, together
        self._late = self._taken = False
        self._abandoned = False
        self._pool = ThreadPoolExecutor(ahead)
        self._ready: collections.deque[Future[Buffer]] = collections.deque()
        self.read_ahead(0)

    def read_ahead(self, started: int) -> None:
        """Start to read own chunks that come soon after those whose broadcasts have started."""
        soon = started + self._together
        while self._left and self._left[0] < soon and len(self._ready) < self._ahead:
            self._ready.append(self._pool.submit(self._fill, self._left.popleft()))

    def is_ready(self) -> bool:
        """Return whether the next own chunk has been read, when it is its turn."""
        ready = self._ready[0].done()
        self._late |= not ready
        return ready

    def take(self) -> Buffer:
        """Return the next own chunk; after one that was late, the next ones are read earlier."""
        if self._late and self._taken:  # the first one is always late
            self._together = min(2 * self._together, len(self._sizes))
        self._late, self._taken = False, True
        return self._ready.popleft().result()

    def close(self) -> None:
        """Wait for pending reads."""
        self._pool.shutdown(wait=not self._abandoned, cancel_futures=True)

    def abandon(self) -> None:
        """Stop waiting: a read that hangs must not keep this agent from ending the job."""
        self._abandoned = True
        abandon_thread()

    def _fill(self, chunk: int) -> Buffer:
        buffer = np.zeros(self._sizes[chunk] + TRAILER, np.uint8)
        try:
            self._read(chunk, buffer[:-TRAILER])
        except DistcacheError as error:
            _pack_error(error, buffer[-TRAILER:])
        except OSError as error:
            _pack_error(DistcacheError(str(error)), buffer[-TRAILER:])
        return buffer


class _Relay:
    """Starts and ends the broadcasts of one agent, in the order of the chunks.

    Chunk q is started when chunk q - WINDOW has arrived. So when a chunk turns out broken, all
    agents have started less than WINDOW more, and all stop before the same one.
    """

    def __init__(
        self,
        agents: Communicator,
        readers: Sequence[int],
        sizes: Sequence[int],
        reader: _Reader,
        sink: ChunkSink,
    ) -> None:
        self._agents = agents
        self._readers = readers
        self._sizes = sizes
        self._reader = reader
        self._sink = sink
        self._going: collections.deque[tuple[int, Buffer, Pending]] = collections.deque()
        self._started = 0
        self._limit = len(sizes)
        self.broken: DistcacheError | None = None

    def run(self, advance: Callable[[float], None]) -> None:
        """Relay all chunks, or up to a broken one."""
        pause, last = SHORTEST_SLEEP, time.monotonic()
        while self._started < self._limit or self._going:
            moved = self._start() + self._end(advance)
            now = time.monotonic()
            if moved:
                pause, last = SHORTEST_SLEEP, now
                continue
            if now - last > limits().stalled:
                raise CollectiveTimeout(
                    f"waited {limits().stalled:.0f} s for chunk {self._started} of "
                    f"{len(self._sizes)}; look for a node or a filesystem that hangs"
                )
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_SLEEP if self._going else IDLE_SLEEP)

    def _start(self) -> int:
        """Start what can be started; return how many."""
        before = self._started
        while self._started < self._limit and len(self._going) < WINDOW and self._sink.has_room():
            root = reader_of(self._started, self._readers)
            if root != self._agents.rank:
                buffer = np.empty(self._sizes[self._started] + TRAILER, np.uint8)
            elif self._reader.is_ready():
                buffer = self._reader.take()
            else:
                break
            pending = self._agents.start_broadcast(buffer, root)
            self._going.append((self._started, buffer, pending))
            self._started += 1
            self._reader.read_ahead(self._started)
        return self._started - before

    def _end(self, advance: Callable[[float], None]) -> int:
        """Advance all broadcasts, and complete the first if it has arrived; return how many."""
        states = [pending.done() for _, _, pending in self._going]
        if not states or not states[0]:
            return 0
        chunk, buffer, _ = self._going.popleft()
        error = _unpack_error(buffer[-TRAILER:])
        if error is not None and self.broken is None:
            self.broken = error
            self._limit = min(chunk + WINDOW, len(self._sizes))
        if self.broken is None:
            self._sink.give(chunk, buffer[:-TRAILER])
        advance(buffer.size - TRAILER)
        return 1


def striped_broadcast(
    agents: Communicator,
    sizes: Sequence[int],
    read: Callable[[int, Buffer], None],
    sink: ChunkSink,
    advance: Callable[[float], None],
    ahead: int = AHEAD,
    together: int | None = None,
    readers: Sequence[int] | None = None,
) -> None:
    """Broadcast chunks, each read by one agent. Collective.

    Parameters
    ----------
    agents : Communicator
        All that get the chunks.
    sizes : sequence of int
        Bytes of each chunk, the same on all.
    read : callable
        Fills an array with a chunk of this agent; called from threads.
    sink : ChunkSink
        Takes all chunks; it is closed.
    advance : callable
        Receives the bytes that have arrived.
    ahead : int
        Own chunks that are read ahead.
    together : int or None
        Chunks that all agents together read ahead at first; by default all that `ahead` allows,
        of which the first one comes as late as all that are read at the same time.
    readers : sequence of int or None
        Agents that read, the same on all; by default all of them.

    Raises
    ------
    DistcacheError
        On all agents, the first that `read` raised on any.
    CollectiveTimeout
        If the others do not answer.
    """
    readers = range(agents.size) if readers is None else readers
    own = [chunk for chunk in range(len(sizes)) if reader_of(chunk, readers) == agents.rank]
    reader = _Reader(own, sizes, read, ahead, len(sizes) if together is None else together)
    relay = _Relay(agents, readers, sizes, reader, sink)
    try:
        relay.run(advance)
    except (CollectiveTimeout, BuildInterrupted):
        reader.abandon()
        raise
    except Exception as error:  # other agents are within broadcasts
        reader.abandon()
        raise CollectiveTimeout(
            f"cannot pass chunks on: {type(error).__name__}: {error}"
        ) from error
    finally:
        reader.close()
        sink.close()
    if relay.broken is not None:
        raise relay.broken
