"""The `mpi` transport: agents read disjoint chunks and broadcast them; each byte is read once.

Blocks are cut into chunks. Chunk p is read by agent p mod agents and broadcast to all. Every agent
starts the broadcasts in the order of the chunks, at most `WINDOW` at a time; one thread reads its
own next chunks ahead, another writes what has arrived. So an agent holds a bounded number of
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

from distcache.errors import BuildInterrupted, CollectiveTimeout, CorpusError, DistcacheError
from distcache.io.files import closing_fd, open_regular
from distcache.io.watchdog import abandon_thread, stalled, tick
from distcache.node.localization import Localization
from distcache.node.manifest import Block, Manifest, Source, origin_of
from distcache.node.staged_files import StagedFiles, differs, digest_of
from distcache.ranks.communicator import Communicator, Pending
from distcache.timeouts import limits

__all__ = ["CHUNK", "Chunk", "cut_chunks", "reader_of", "striped_broadcast"]

CHUNK: Final = 8 << 20  # bytes
WINDOW: Final = 4  # broadcasts at a time
AHEAD: Final = 2  # own chunks read ahead
BACKLOG: Final = 8  # arrived chunks that wait to be written
TRAILER: Final = 8  # bytes after a chunk: 0, or the errno of the agent that read it
TOO_SHORT: Final = errno.ENODATA  # not an errno of a read
SHORTEST_SLEEP: Final = 2e-5
LONGEST_SLEEP: Final = 1e-3

Buffer = NDArray[np.uint8]


class Chunk(msgspec.Struct, frozen=True):
    """Bytes [begin, end) of the file that a block comes from."""

    block: int
    begin: int
    end: int


def cut_chunks(blocks: Sequence[Block], numbers: Sequence[int], size: int = CHUNK) -> list[Chunk]:
    """Cut blocks into chunks of at most so many bytes, in order."""
    chunks = []
    for number in numbers:
        block = blocks[number]
        first, last = (0, block.source.size) if block.source else (block.begin, block.end)
        chunks += [
            Chunk(number, begin, min(begin + size, last)) for begin in range(first, last, size)
        ]
    return chunks


def reader_of(chunk: int, agents: int) -> int:
    """Return the agent that reads a chunk."""
    return chunk % agents


class Broken(msgspec.Struct, frozen=True):
    """A chunk that could not be read, and why."""

    chunk: Chunk
    error_number: int


class _Reader:
    """Reads this agent's chunks ahead of their broadcasts."""

    def __init__(
        self, manifest: Manifest, own: Sequence[Chunk], count: Callable[[int], None]
    ) -> None:
        self._manifest = manifest
        self._left = collections.deque(own)
        self._count = count
        self._abandoned = False
        self._pool = ThreadPoolExecutor(AHEAD)
        self._ready: collections.deque[Future[Buffer]] = collections.deque()
        for _ in range(AHEAD):
            self._go_on()

    def is_ready(self) -> bool:
        """Return whether the next own chunk has been read."""
        return self._ready[0].done()

    def take(self) -> Buffer:
        """Return the next own chunk, and start to read another."""
        buffer = self._ready.popleft().result()
        self._go_on()
        return buffer

    def close(self) -> None:
        """Wait for pending reads."""
        self._pool.shutdown(wait=not self._abandoned, cancel_futures=True)

    def abandon(self) -> None:
        """Stop waiting: a read that hangs must not keep this agent from ending the job."""
        self._abandoned = True
        abandon_thread()

    def _go_on(self) -> None:
        if self._left:
            self._ready.append(self._pool.submit(self._read, self._left.popleft()))

    def _read(self, chunk: Chunk) -> Buffer:
        buffer = np.zeros(chunk.end - chunk.begin + TRAILER, np.uint8)
        block = self._manifest.blocks[chunk.block]
        try:
            path, _, _ = origin_of(self._manifest, block)
            with closing_fd(open_regular(path)) as descriptor:
                done = 0
                while done < buffer.size - TRAILER:
                    count = os.preadv(descriptor, [buffer[done:-TRAILER].data], chunk.begin + done)
                    if count == 0:
                        raise OSError(TOO_SHORT, "the file is too short")
                    done += count
                    tick()
            self._count(done)
        except OSError as error:
            number = error.errno or errno.EIO
            buffer[-TRAILER:] = np.frombuffer(number.to_bytes(TRAILER, "little"), np.uint8)
        return buffer


class _Writer:
    """Writes arriving chunks in order, and compares each block with its digest."""

    def __init__(self, manifest: Manifest, staged: StagedFiles, mine: frozenset[int]) -> None:
        self._manifest = manifest
        self._staged = staged
        self._mine = mine
        self._pool = ThreadPoolExecutor(1)
        self._waiting: collections.deque[Future[None]] = collections.deque()
        self._digest: Any = None
        self._packed = bytearray()
        self._moved = time.monotonic()
        self._stuck = False
        self.problems: list[DistcacheError | OSError] = []

    def has_room(self) -> bool:
        """Return whether another chunk may be added; not if the disk hangs."""
        self._settle()
        return self._stuck or len(self._waiting) < BACKLOG

    def give(self, chunk: Chunk, data: Buffer) -> None:
        """Queue a chunk that has arrived, if this node needs it."""
        if chunk.block in self._mine and not self._stuck:
            if not self._waiting:
                self._moved = time.monotonic()
            self._waiting.append(self._pool.submit(self._write, chunk, data))

    def close(self) -> None:
        """Wait until all chunks are written, unless the disk hangs."""
        while self._waiting and not self._stuck:
            self._settle()
            time.sleep(SHORTEST_SLEEP)
        self._pool.shutdown(wait=not self._stuck, cancel_futures=True)

    def _settle(self) -> None:
        """Collect finished writes, or detect that there was no progress for too long."""
        now = time.monotonic()
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft().result()
            self._moved = now
        # Earlier than the other agents would time out.
        if self._waiting and not self._stuck and now - self._moved > limits().stalled / 2:
            self._stuck = True
            self.problems.append(stalled("writing what has arrived", now - self._moved))

    def _write(self, chunk: Chunk, data: Buffer) -> None:
        block = self._manifest.blocks[chunk.block]
        if block.source is not None:
            self._gather(block, block.source, chunk, data)
            return
        if chunk.begin == block.begin:
            self._digest = digest_of(block)
        self._digest.update(data.data)
        if not self.problems:
            try:
                with closing_fd(self._staged.open(block.file)) as descriptor:
                    self._staged.write(descriptor, chunk.begin, data)
                    if chunk.end == block.end:
                        self._staged.begin_writeback(descriptor, block)
            except (DistcacheError, OSError) as error:
                self.problems.append(error)  # the broadcasts still need this agent
        if chunk.end == block.end and self._digest.hexdigest() != block.digest:
            self.problems.append(differs(self._manifest, block))

    def _gather(self, block: Block, source: Source, chunk: Chunk, data: Buffer) -> None:
        """Keep the chunks of a shard's file until all are there, then unpack it."""
        if chunk.begin == 0:
            self._packed = bytearray()
        self._packed += data.data
        if chunk.end < source.size:
            return
        packed, self._packed = self._packed, bytearray()
        if not self.problems:
            try:
                if not self._staged.unpack(block, packed, lambda _: None):
                    self.problems.append(differs(self._manifest, block))
            except (DistcacheError, OSError) as error:
                self.problems.append(error)  # the broadcasts still need this agent


class _Relay:
    """Starts and ends the broadcasts of one agent, in the order of the chunks.

    Chunk q is started when chunk q - WINDOW has arrived. So when a chunk turns out broken, all
    agents have started less than WINDOW more, and all stop before the same one.
    """

    def __init__(
        self, agents: Communicator, chunks: Sequence[Chunk], reader: _Reader, writer: _Writer
    ) -> None:
        self._agents = agents
        self._chunks = chunks
        self._reader = reader
        self._writer = writer
        self._going: collections.deque[tuple[int, Buffer, Pending]] = collections.deque()
        self._started = 0
        self._limit = len(chunks)
        self.broken: Broken | None = None

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
                    f"{len(self._chunks)}; look for a node or a filesystem that hangs"
                )
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_SLEEP)

    def _start(self) -> int:
        """Start what can be started; return how many."""
        before = self._started
        while self._started < self._limit and len(self._going) < WINDOW and self._writer.has_room():
            chunk = self._chunks[self._started]
            root = reader_of(self._started, self._agents.size)
            if root != self._agents.rank:
                buffer = np.empty(chunk.end - chunk.begin + TRAILER, np.uint8)
            elif self._reader.is_ready():
                buffer = self._reader.take()
            else:
                break
            pending = self._agents.start_broadcast(buffer, root)
            self._going.append((self._started, buffer, pending))
            self._started += 1
        return self._started - before

    def _end(self, advance: Callable[[float], None]) -> int:
        """Advance all broadcasts, and complete the first if it has arrived; return how many."""
        states = [pending.done() for _, _, pending in self._going]
        if not states or not states[0]:
            return 0
        number, buffer, _ = self._going.popleft()
        error_number = int.from_bytes(buffer[-TRAILER:].tobytes(), "little")
        if error_number and self.broken is None:
            self.broken = Broken(self._chunks[number], error_number)
            self._limit = min(number + WINDOW, len(self._chunks))
        if self.broken is None:
            self._writer.give(self._chunks[number], buffer[:-TRAILER])
        advance(buffer.size - TRAILER)
        return 1


def striped_broadcast(run: Localization, needed: Sequence[int], mine: frozenset[int]) -> int:
    """Broadcast blocks to all nodes that need them. Collective.

    Parameters
    ----------
    run : Localization
        What is copied.
    needed : sequence of int
        Blocks that any node needs, the same on all.
    mine : frozenset of int
        Those that this node needs.

    Returns
    -------
    int
        Bytes that this agent has read from the shared filesystem.

    Raises
    ------
    DistcacheError, OSError
        On any agent, of what that agent saw; agree before the next collective.
    CollectiveTimeout
        If the others do not answer.
    """
    manifest = run.manifest
    chunks = cut_chunks(manifest.blocks, needed)
    read: list[int] = []
    reader = _Reader(manifest, chunks[run.agents.rank :: run.agents.size], read.append)
    writer = _Writer(manifest, run.staged, mine)
    relay = _Relay(run.agents, chunks, reader, writer)
    try:
        relay.run(run.progress.advance)
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
        writer.close()
    if (broken := relay.broken) is not None:
        path, _, _ = origin_of(manifest, manifest.blocks[broken.chunk.block])
        if broken.error_number == TOO_SHORT:
            raise CorpusError(f"{path}: was cut short while it was read; build again")
        problem = f"{path}: cannot be read: {os.strerror(broken.error_number)}"
        if broken.error_number == errno.ENOENT:
            raise CorpusError(f"{problem}; put it back, or build again")
        raise DistcacheError(problem)
    if writer.problems:
        raise writer.problems[0]
    return sum(read)
