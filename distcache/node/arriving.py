"""Write the chunks that arrive by a broadcast, and compare the blocks that they make up."""

from __future__ import annotations

import collections
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import msgspec

from distcache.errors import DistcacheError
from distcache.node.manifest import Block, Manifest, ShardSource
from distcache.node.staged_files import StagedFiles, differs, digest_of
from distcache.ranks.striped_broadcast import AHEAD, CHUNK, Buffer
from distcache.storage.files import closing_fd
from distcache.storage.timeouts import limits
from distcache.storage.url import is_url
from distcache.storage.watchdog import stalled

BACKLOG: Final = 8  # arrived chunks that wait to be written
SHORTEST_SLEEP: Final = 2e-5
# Chunks that all agents together read ahead at first, of files and of objects, whose answers wait.
FILES_AHEAD: Final = 8
OBJECTS_AHEAD: Final = 16


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


def reads_ahead(source: str, agents: int) -> tuple[int, int]:
    """Return how many chunks an agent reads ahead, and how many all agents together."""
    if is_url(source):
        return max(AHEAD, min(OBJECTS_AHEAD // agents, OBJECTS_AHEAD // 2)), OBJECTS_AHEAD
    return AHEAD, FILES_AHEAD


class ArrivingChunks:
    """Writes arriving chunks in order, and compares each block with its digest."""

    def __init__(
        self,
        manifest: Manifest,
        staged: StagedFiles,
        chunks: Sequence[Chunk],
        mine: frozenset[int],
    ) -> None:
        self._manifest = manifest
        self._staged = staged
        self._chunks = chunks
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

    def give(self, chunk: int, data: Buffer) -> None:
        """Queue a chunk that has arrived, if this node needs it."""
        if self._chunks[chunk].block in self._mine and not self._stuck:
            if not self._waiting:
                self._moved = time.monotonic()
            self._waiting.append(self._pool.submit(self._write, self._chunks[chunk], data))

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
        if self.problems:
            return  # the broadcasts still need this agent
        try:
            with closing_fd(self._staged.open(block.file)) as descriptor:
                self._staged.write(descriptor, chunk.begin, data)
                if chunk.end == block.end:
                    self._staged.begin_writeback(descriptor, block)
            if chunk.end == block.end and not self._staged.accept(block, self._digest.hexdigest()):
                self.problems.append(differs(self._manifest, block))
        except (DistcacheError, OSError) as error:
            self.problems.append(error)

    def _gather(self, block: Block, source: ShardSource, chunk: Chunk, data: Buffer) -> None:
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
