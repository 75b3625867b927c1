"""The `mpi` transport: agents read disjoint stripes and pass them on, so each byte is read once.

Units are cut into pieces. Piece p is read by agent p mod agents and broadcast to all. Every agent
starts the broadcasts in the order of the pieces, at most `WINDOW` at a time; one thread reads its
own next pieces ahead, another writes what has arrived. So an agent holds a bounded number of
buffers, however many agents and bytes there are.
"""

from __future__ import annotations

import collections
import errno
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from distcache.activity import leave_behind, moved, stalled
from distcache.errors import BuildInterrupted, CorpusError, DistcacheError, OutOfStep
from distcache.files import open_regular
from distcache.node.landing import Landing, differs, digest_of
from distcache.node.pieces import Piece, cut, reader_of
from distcache.node.wanted import Wanted
from distcache.ranks.communicator import Communicator, Pending
from distcache.timeouts import limits

__all__ = ["pass_on"]

WINDOW: Final = 4  # broadcasts at a time
AHEAD: Final = 2  # own pieces read ahead
BACKLOG: Final = 8  # arrived pieces that wait to be written
TRAILER: Final = 8  # bytes behind a piece: 0, or the error number of the agent that read it
TOO_SHORT: Final = errno.ENODATA  # no filesystem says this of a read
SHORTEST_SLEEP: Final = 2e-5
LONGEST_SLEEP: Final = 1e-3

Buffer = NDArray[np.uint8]


class Broken(msgspec.Struct, frozen=True):
    """That a piece could not be read, and why."""

    piece: Piece
    error_number: int


class _Reader:
    """Reads this agent's own pieces, some ahead of their turn."""

    def __init__(self, wanted: Wanted, own: Sequence[Piece], count: Callable[[int], None]) -> None:
        self._wanted = wanted
        self._left = collections.deque(own)
        self._count = count
        self._abandoned = False
        self._pool = ThreadPoolExecutor(AHEAD)
        self._ready: collections.deque[Future[Buffer]] = collections.deque()
        for _ in range(AHEAD):
            self._go_on()

    def is_ready(self) -> bool:
        """Tell whether the next own piece has been read."""
        return self._ready[0].done()

    def take(self) -> Buffer:
        """Take the next own piece, and begin to read another."""
        buffer = self._ready.popleft().result()
        self._go_on()
        return buffer

    def close(self) -> None:
        """Wait for what is being read."""
        self._pool.shutdown(wait=not self._abandoned, cancel_futures=True)

    def abandon(self) -> None:
        """Wait no more: a read that hangs must not keep this agent from ending the job."""
        self._abandoned = True
        leave_behind()

    def _go_on(self) -> None:
        if self._left:
            self._ready.append(self._pool.submit(self._read, self._left.popleft()))

    def _read(self, piece: Piece) -> Buffer:
        buffer = np.zeros(piece.end - piece.begin + TRAILER, np.uint8)
        unit = self._wanted.units[piece.unit]
        try:
            descriptor = open_regular(self._wanted.files[unit.file].shared)
            try:
                done = 0
                while done < buffer.size - TRAILER:
                    count = os.preadv(descriptor, [buffer[done:-TRAILER].data], piece.begin + done)
                    if count == 0:
                        raise OSError(TOO_SHORT, "the file is too short")
                    done += count
                    moved()
            finally:
                os.close(descriptor)
            self._count(done)
        except OSError as error:
            number = error.errno or errno.EIO
            buffer[-TRAILER:] = np.frombuffer(number.to_bytes(TRAILER, "little"), np.uint8)
        return buffer


class _Writer:
    """Writes what arrives, in order, and compares each unit with its digest."""

    def __init__(self, wanted: Wanted, landing: Landing, mine: frozenset[int]) -> None:
        self._wanted = wanted
        self._landing = landing
        self._mine = mine
        self._pool = ThreadPoolExecutor(1)
        self._waiting: collections.deque[Future[None]] = collections.deque()
        self._digest: Any = None
        self._moved = time.monotonic()
        self._stuck = False
        self.problems: list[DistcacheError | OSError] = []

    def has_room(self) -> bool:
        """Tell whether another piece may be given; a disk that hangs gets no more of them."""
        self._settle()
        return self._stuck or len(self._waiting) < BACKLOG

    def give(self, piece: Piece, data: Buffer) -> None:
        """Take a piece that has arrived, if this node needs it."""
        if piece.unit in self._mine and not self._stuck:
            if not self._waiting:
                self._moved = time.monotonic()
            self._waiting.append(self._pool.submit(self._write, piece, data))

    def close(self) -> None:
        """Wait until all is written, unless it hangs."""
        while self._waiting and not self._stuck:
            self._settle()
            time.sleep(SHORTEST_SLEEP)
        self._pool.shutdown(wait=not self._stuck, cancel_futures=True)

    def _settle(self) -> None:
        """Take note of what has been written, or of that nothing has for too long."""
        now = time.monotonic()
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft().result()
            self._moved = now
        # Earlier than the others give this agent up.
        if self._waiting and not self._stuck and now - self._moved > limits().stalled / 2:
            self._stuck = True
            self.problems.append(stalled("writing what has arrived", now - self._moved))

    def _write(self, piece: Piece, data: Buffer) -> None:
        unit = self._wanted.units[piece.unit]
        if piece.begin == unit.begin:
            self._digest = digest_of(unit)
        self._digest.update(data.data)
        if not self.problems:
            try:
                descriptor = self._landing.open(unit.file)
                try:
                    self._landing.write(descriptor, piece.begin, data)
                    if piece.end == unit.end:
                        self._landing.begin_writeback(descriptor, unit)
                finally:
                    os.close(descriptor)
            except (DistcacheError, OSError) as error:
                self.problems.append(error)  # the others still need this agent
        if piece.end == unit.end and self._digest.hexdigest() != unit.digest:
            self.problems.append(differs(self._wanted, unit))


class _Relay:
    """Starts and ends the broadcasts of one agent, in the order of the pieces.

    Piece q is started when piece q - WINDOW has arrived. So when a piece turns out broken, all
    agents have started less than WINDOW more, and all stop before the same one.
    """

    def __init__(
        self, agents: Communicator, pieces: Sequence[Piece], reader: _Reader, writer: _Writer
    ) -> None:
        self._agents = agents
        self._pieces = pieces
        self._reader = reader
        self._writer = writer
        self._going: collections.deque[tuple[int, Buffer, Pending]] = collections.deque()
        self._started = 0
        self._limit = len(pieces)
        self.broken: Broken | None = None

    def run(self, advance: Callable[[float], None]) -> None:
        """Relay all pieces, or up to a broken one."""
        pause, last = SHORTEST_SLEEP, time.monotonic()
        while self._started < self._limit or self._going:
            moved = self._start() + self._end(advance)
            now = time.monotonic()
            if moved:
                pause, last = SHORTEST_SLEEP, now
                continue
            if now - last > limits().stalled:
                raise OutOfStep(
                    f"waited {limits().stalled:.0f} s for piece {self._started} of "
                    f"{len(self._pieces)}; look for a node or a filesystem that hangs"
                )
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_SLEEP)

    def _start(self) -> int:
        """Start what can be started; return how many."""
        before = self._started
        while self._started < self._limit and len(self._going) < WINDOW and self._writer.has_room():
            piece = self._pieces[self._started]
            root = reader_of(self._started, self._agents.size)
            if root != self._agents.rank:
                buffer = np.empty(piece.end - piece.begin + TRAILER, np.uint8)
            elif self._reader.is_ready():
                buffer = self._reader.take()
            else:
                break
            pending = self._agents.start_broadcast(buffer, root)
            self._going.append((self._started, buffer, pending))
            self._started += 1
        return self._started - before

    def _end(self, advance: Callable[[float], None]) -> int:
        """Move all on, and take the first if it has arrived; return how many."""
        states = [pending.done() for _, _, pending in self._going]
        if not states or not states[0]:
            return 0
        number, buffer, _ = self._going.popleft()
        error_number = int.from_bytes(buffer[-TRAILER:].tobytes(), "little")
        if error_number and self.broken is None:
            self.broken = Broken(self._pieces[number], error_number)
            self._limit = min(number + WINDOW, len(self._pieces))
        if self.broken is None:
            self._writer.give(self._pieces[number], buffer[:-TRAILER])
        advance(buffer.size - TRAILER)
        return 1


def pass_on(
    agents: Communicator,
    wanted: Wanted,
    landing: Landing,
    needed: Sequence[int],
    mine: frozenset[int],
    advance: Callable[[float], None],
) -> int:
    """Bring units to all nodes that need them. Collective.

    Parameters
    ----------
    agents : Communicator
        One of each node.
    wanted : Wanted
        The same files and units on all nodes.
    landing : Landing
        Where this node's go.
    needed : sequence of int
        Units that any node needs, the same on all.
    mine : frozenset of int
        Those that this node needs.
    advance : callable
        Told of the bytes of every piece.

    Returns
    -------
    int
        Bytes that this agent has read from the shared filesystem.

    Raises
    ------
    DistcacheError, OSError
        On any agent, of what that agent saw; agree before the next collective.
    OutOfStep
        If the others do not answer.
    """
    pieces = cut(wanted.units, needed)
    read: list[int] = []
    reader = _Reader(wanted, pieces[agents.rank :: agents.size], read.append)
    writer = _Writer(wanted, landing, mine)
    relay = _Relay(agents, pieces, reader, writer)
    try:
        relay.run(advance)
    except (OutOfStep, BuildInterrupted):
        reader.abandon()
        raise
    except Exception as error:  # the others are in the middle of broadcasts
        reader.abandon()
        raise OutOfStep(f"cannot pass pieces on: {type(error).__name__}: {error}") from error
    finally:
        reader.close()
        writer.close()
    if (broken := relay.broken) is not None:
        path = wanted.files[wanted.units[broken.piece.unit].file].shared
        if broken.error_number == TOO_SHORT:
            raise CorpusError(f"{path}: was cut short while it was read; build again")
        raise DistcacheError(f"{path}: cannot be read: {os.strerror(broken.error_number)}")
    if writer.problems:
        raise writer.problems[0]
    return sum(read)
