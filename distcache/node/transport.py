"""Fetch blocks from the shared filesystem: `mpi` reads each once for all nodes, `copy` per node."""

from __future__ import annotations

import collections
import os
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from distcache.errors import DistcacheError
from distcache.node.local_state import Duplicate
from distcache.node.manifest import Block, Manifest, ShardSource, origin_of
from distcache.node.records import LocalizeOptions
from distcache.node.staged_files import (
    StagedFiles,
    Unreadable,
    differs,
    digest_of,
    read_shared_into,
)
from distcache.node.store import Store
from distcache.ranks.agreement import on_all_ranks, on_all_ranks_watched
from distcache.ranks.communicator import Communicator
from distcache.ranks.job_environment import node_count
from distcache.ranks.progress import Progress
from distcache.ranks.striped_broadcast import AHEAD, CHUNK, Buffer, striped_broadcast
from distcache.storage.files import closing_fd
from distcache.storage.place import threads_for
from distcache.storage.timeouts import limits
from distcache.storage.url import is_url
from distcache.storage.watchdog import stalled

AT_ONCE: Final = 64  # nodes that read at a time, where MPI joins them
LONGEST_JITTER: Final = 5.0  # seconds
BACKLOG: Final = 8  # arrived chunks that wait to be written
SHORTEST_SLEEP: Final = 2e-5
# Chunks that all agents together read ahead at first, of files and of objects, whose answers wait.
FILES_AHEAD: Final = 8
OBJECTS_AHEAD: Final = 16
Result = TypeVar("Result")


def choose_transport(asked: str, agents: int) -> tuple[str, str]:
    """Return the transport, and the reason in a few words."""
    if asked != "auto":
        return asked, "asked for"
    if agents > 1:
        return "mpi", f"{agents} nodes, so that each byte is read from the shared filesystem once"
    return "copy", "this process knows of one node"


def fetch(run: Localization, mine: Sequence[int]) -> int:
    """Fetch the blocks that nodes need from the shared filesystem. Collective.

    Parameters
    ----------
    run : Localization
        Localization with what to fetch.
    mine : sequence of int
        Blocks that this node needs.

    Returns
    -------
    int
        Bytes that this agent has read.

    Raises
    ------
    DistcacheError
        On all agents the same.
    """
    if run.options.transport == "copy":
        if run.agents.size == 1 and mine:
            jitter(node_count(os.environ))
        read = 0
        for turn in turns(run.agents.size):
            own = mine if run.agents.rank in turn else ()
            read += run.on_all_agents_watched(partial(_copy_shared, run, own), "copying")
        return read
    shares = run.agents.allgather(list(mine), list[int], "what the nodes need")
    needed = sorted({number for share in shares for number in share})
    return on_all_ranks(
        run.agents, lambda: broadcast_blocks(run, needed, frozenset(mine)), "broadcasting chunks"
    )


def turns(nodes: int) -> list[range]:
    """Return the nodes in groups that read at a time."""
    return [range(begin, min(begin + AT_ONCE, nodes)) for begin in range(0, nodes, AT_ONCE)]


def jitter(nodes: int) -> None:
    """Wait for a random time, so that not all nodes open the same file at once."""
    if nodes > 1:
        time.sleep(random.uniform(0, min(LONGEST_JITTER, 0.01 * nodes)))  # noqa: S311


def _copy_shared(run: Localization, numbers: Sequence[int]) -> int:
    """Copy blocks from the shared filesystem, and return their bytes.

    Raises
    ------
    CacheCorrupt, CorpusError
        If a shared file differs from its digest.
    Unreadable
        If it cannot be read.
    """

    def copy(number: int) -> int:
        block = run.manifest.blocks[number]
        path, begin, end, version = origin_of(run.manifest, block)
        if block.source is None:
            valid = run.staged.copy(block, path, begin, run.progress.advance, version)
        else:
            valid = run.staged.unpack(block, None, run.progress.advance)
        if not valid:
            raise differs(run.manifest, block)
        return end - begin

    blocks = (run.manifest.blocks[number] for number in numbers)
    paths = (origin_of(run.manifest, block)[0] for block in blocks)
    with ThreadPoolExecutor(threads_for(paths, run.options.threads)) as pool:
        futures = [pool.submit(copy, number) for number in numbers]
        try:
            return sum(future.result() for future in futures)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def copy_duplicates(run: Localization, places: Mapping[int, Duplicate]) -> frozenset[int]:
    """Copy blocks from other caches of the store, and return those whose digest matches."""

    def copy(number: int) -> bool:
        block, place = run.manifest.blocks[number], places[number]
        try:
            return run.staged.copy(block, place.path, place.begin, run.progress.advance)
        except Unreadable:
            return False  # it is fetched like the others

    with ThreadPoolExecutor(run.options.threads) as pool:
        found = zip(places, pool.map(copy, places), strict=True)
        return frozenset(number for number, right in found if right)


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


class _Writer:
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


def broadcast_blocks(run: Localization, needed: Sequence[int], mine: frozenset[int]) -> int:
    """Broadcast blocks to all nodes that need them. Collective.

    Parameters
    ----------
    run : Localization
        Localization with what is copied.
    needed : sequence of int
        Blocks that any node needs, the same on all.
    mine : frozenset of int
        Blocks that this node needs.

    Returns
    -------
    int
        Bytes that this agent has read from the shared filesystem, or from a bucket.

    Raises
    ------
    DistcacheError, OSError
        On any agent, of what that agent saw; agree before the next collective.
    CollectiveTimeout
        If the others do not answer.
    """
    manifest = run.manifest
    chunks = cut_chunks(manifest.blocks, needed)
    done: list[int] = []

    def read(number: int, out: Buffer) -> None:
        chunk = chunks[number]
        origin = origin_of(manifest, manifest.blocks[chunk.block])
        read_shared_into(out, origin.path, chunk.begin, origin.version)
        done.append(out.size)

    writer = _Writer(manifest, run.staged, chunks, mine)
    sizes = [chunk.end - chunk.begin for chunk in chunks]
    ahead, together = reads_ahead(manifest.source, run.agents.size)
    striped_broadcast(
        run.agents,
        sizes,
        read,
        writer,
        run.progress.advance,
        ahead,
        together,
        run.readers,
    )
    if writer.problems:
        raise writer.problems[0]
    return sum(done)


@dataclass(frozen=True)
class Localization:
    """The localization of one cache, on one of its agents."""

    agents: Communicator  # one of each node
    readers: tuple[int, ...]  # the agents that see the shared cache, and read for the others
    store: Store  # this node's, locked
    manifest: Manifest  # the same files and blocks on all nodes
    # options, with what earlier runs were asked for; the transport is "mpi" or "copy"
    options: LocalizeOptions
    progress: Progress  # receives the progress of this agent
    staged: StagedFiles  # the unfinished files on this node

    def on_all_agents_watched(self, action: Callable[[], Result], what: str) -> Result:
        """Run an action on local files as `on_all_ranks_watched` does. Collective."""
        return on_all_ranks_watched(self.agents, action, what)

    def bytes_of(self, blocks: Iterable[int]) -> int:
        """Return the bytes of some blocks."""
        return sum(self.manifest.blocks[number].size for number in blocks)
