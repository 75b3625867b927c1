"""Write the chunks that arrive from other agents, and compare the blocks that they make up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from distcache.errors import DistcacheError
from distcache.node.manifest import Block, Manifest, ShardSource
from distcache.node.staged_files import StagedFiles, differs, digest_of
from distcache.ranks.gather_rounds import READ_THREADS, Buffer
from distcache.storage.files import closing_fd
from distcache.storage.url import is_url

# Requests to a store that all agents together have under way, and each of them.
REQUESTS: Final = 16
MAX_REQUESTS: Final = 8


class Chunk(msgspec.Struct, frozen=True):
    """Bytes [begin, end) of the file that a block comes from."""

    block: int
    begin: int
    end: int


def cut_chunks(blocks: Sequence[Block], numbers: Sequence[int], size: int) -> list[Chunk]:
    """Cut blocks into chunks of at most so many bytes, in order."""
    chunks = []
    for number in numbers:
        block = blocks[number]
        first, last = (0, block.source.size) if block.source else (block.begin, block.end)
        chunks += [
            Chunk(number, begin, min(begin + size, last)) for begin in range(first, last, size)
        ]
    return chunks


def read_threads(source: str, agents: int) -> int:
    """Return how many chunks an agent reads at a time."""
    return (
        max(READ_THREADS, min(REQUESTS // agents, MAX_REQUESTS)) if is_url(source) else READ_THREADS
    )


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
        self._digest: Any = None
        self._packed = bytearray()
        self.problems: list[DistcacheError | OSError] = []

    def write(self, number: int, data: Buffer) -> None:
        """Write a chunk if this node needs it; problems are kept, as later blocks may be sound."""
        chunk = self._chunks[number]
        if chunk.block not in self._mine:
            return
        block = self._manifest.blocks[chunk.block]
        if block.source is not None:
            self._gather(block, block.source, chunk, data)
            return
        if chunk.begin == block.begin:
            self._digest = digest_of(block)
        self._digest.update(data.data)
        if self.problems:
            return
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
                self.problems.append(error)
