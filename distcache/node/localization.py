"""The steps in which the agents copy a cache to their nodes; all agents agree on each."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Final, TypeVar

import msgspec

from distcache import __version__
from distcache.corpus import bin_path
from distcache.errors import CorpusError, DistcacheError, ObjectChanged
from distcache.node.arriving import ArrivingChunks, cut_chunks, read_threads
from distcache.node.manifest import CACHE, Manifest, describe, origin_of, stat_corpora
from distcache.node.records import (
    LocalCorpus,
    LocalizeOptions,
    NodeReport,
    Ready,
    Request,
    invalidate,
    make_report,
    read_record,
    write_record,
)
from distcache.node.staged_files import (
    LocalState,
    StagedFiles,
    differs,
    has_final,
    read_shared_into,
    require_same_content,
    verify_local,
)
from distcache.node.store import Store, sweep
from distcache.node.upkeep import bytes_of, make_room
from distcache.node.view import link_tokens, make_view, missing_view_bytes
from distcache.ranks.agreement import on_all_ranks, on_all_ranks_watched
from distcache.ranks.communicator import Communicator
from distcache.ranks.gather_rounds import Buffer, chunk_bytes, gather_rounds
from distcache.ranks.job_environment import node_name
from distcache.ranks.progress import Progress
from distcache.storage.files import closing_fd, set_time
from distcache.storage.place import threads_for
from distcache.storage.space import allocated, require_space
from distcache.storage.threads import map_in_threads

SYNCS: Final = 8  # files that are synced at a time: the filesystem does them together
Result = TypeVar("Result")
Item = TypeVar("Item")


class Localization:
    """The localization of one cache, on one of its agents.

    Parameters
    ----------
    agents : Communicator
        One of each node.
    readers : tuple of int
        The agents that see the shared cache, and read for the others.
    store : Store
        This node's, locked.
    manifest : Manifest
        The same files and blocks on all nodes.
    options : LocalizeOptions
        Options of the localization.
    asked : Request
        Contents of the copy, those that earlier runs were asked for included.
    progress : Progress
        Receives the progress of this agent.
    """

    def __init__(
        self,
        agents: Communicator,
        readers: tuple[int, ...],
        store: Store,
        manifest: Manifest,
        options: LocalizeOptions,
        asked: Request,
        progress: Progress,
    ) -> None:
        self._agents = agents
        self._readers = readers
        self._store = store
        self._manifest = manifest
        self._options = options
        self._asked = asked
        self._progress = progress
        self._staged = StagedFiles(manifest)

    def run(self) -> tuple[Ready, NodeReport]:
        """Fetch the blocks that are missing or invalid, and mark the copy ready. Collective.

        A name in a store contains the digests of its content. So a repair in place only turns wrong
        bytes into right ones, even while processes have the file open.

        Returns
        -------
        Ready, NodeReport
            Content of the store now, and the report of this agent.

        Raises
        ------
        DistcacheError
            On all agents the same; then no store has a new ready record.
        """
        blocks = range(len(self._manifest.blocks))
        self._progress.phase("verifying the local copy", self._bytes_of(blocks))
        found = self._on_all_agents(self._verify, "verifying the local copy")
        self._confirm(found)
        missing = [number for number in blocks if number not in found.valid_blocks]
        self._make_room(found)
        self._progress.phase("copying", self._bytes_of(missing))
        read = self._fetch(missing)
        self._progress.phase("syncing")
        self._on_all_agents(lambda: self._finish(found.valid_files), "completing files")
        self._require_unchanged()
        if self._asked.naming is not None:
            self._progress.phase("writing Megatron's files")
        record = self._on_all_agents(self._mark_ready, "writing the ready record")
        budget = self._options.budget

        def report() -> NodeReport:
            return make_report(
                self._store,
                record,
                read=read,
                written=self._staged.written,
                kept=self._bytes_of(found.valid_blocks),
                beyond=0 if budget is None else max(bytes_of(self._store) - budget, 0),
            )

        return record, on_all_ranks(self._agents, report, "reporting")

    def _on_all_agents(self, action: Callable[[], Result], what: str) -> Result:
        """Run an action on local files as `on_all_ranks_watched` does. Collective."""
        return on_all_ranks_watched(self._agents, action, what)

    def _share(self, items: Sequence[Item]) -> list[Item]:
        """Return what this agent reads of shared files: one that sees none reads none."""
        if self._agents.rank not in self._readers:
            return []
        return list(items[self._readers.index(self._agents.rank) :: len(self._readers)])

    def _bytes_of(self, blocks: Iterable[int]) -> int:
        return sum(self._manifest.blocks[number].size for number in blocks)

    def _verify(self) -> LocalState:
        record = read_record(self._store, self._manifest.name) if self._options.quick else None
        return verify_local(self._manifest, self._options.threads, self._progress.advance, record)

    def _confirm(self, found: LocalState) -> None:
        """Check shared indices whose time has changed by their digests, each once. Collective."""
        shares = self._agents.allgather(
            sorted(found.files_to_confirm), list[int], "indices whose time has changed"
        )
        own = self._share(sorted({file for share in shares for file in share}))
        try:
            self._on_all_agents(
                lambda: require_same_content(self._manifest, own), "reading shared indices"
            )
        except CorpusError:
            invalidate(self._store, self._manifest.name)  # the tokens have changed with the index
            raise

        def set_times() -> None:
            for file in found.files_to_confirm:
                target = self._manifest.files[file]
                set_time(target.final, target.modified)

        self._on_all_agents(set_times, "setting times")

    def _make_room(self, found: LocalState) -> None:
        """Reserve all space on all nodes before anything is changed on any. Collective."""
        files = [n for n in range(len(self._manifest.files)) if n not in found.valid_files]
        try:
            self._on_all_agents(lambda: self._reserve(files), "reserving space")
        except DistcacheError:
            self._staged.undo()
            raise

        def begin() -> None:
            if files:
                invalidate(self._store, self._manifest.name)

        self._on_all_agents(begin, "preparing the repair")

    def _reserve(self, incomplete: Sequence[int]) -> None:
        """Reserve the space of this node's files."""
        store, manifest, options = self._store, self._manifest, self._options
        sweep(store)
        unfinished = [file for file in incomplete if not has_final(manifest.files[file])]
        targets = [manifest.files[file] for file in unfinished]
        needed = sum(max(target.size - allocated(target.part), 0) for target in targets)
        if self._asked.naming is not None:
            needed += missing_view_bytes(store, manifest, self._asked.naming)
        if options.budget is not None:
            make_room(store, options.budget - needed, manifest)
        advice = "free space with `distcache local gc`, or choose another directory with --store"
        require_space(store.root, needed, advice, spare=options.reserve)
        for file in unfinished:
            self._staged.make(file)

    def _fetch(self, mine: Sequence[int]) -> int:
        """Fetch the blocks that this node needs, each read once for all nodes. Collective.

        Returns
        -------
        int
            Bytes that this agent has read from the shared filesystem, or from a bucket.
        """
        if self._agents.size == 1:
            return self._on_all_agents(lambda: self._copy_blocks(mine), "copying")
        shares = self._agents.allgather(list(mine), list[int], "what the nodes need")
        needed = sorted({number for share in shares for number in share})
        return self._gather_blocks(needed, frozenset(mine))

    def _copy_blocks(self, numbers: Sequence[int]) -> int:
        """Copy blocks, several at a time, and return their bytes.

        Raises
        ------
        CacheCorrupt, CorpusError
            If a shared file differs from its digest.
        Unreadable
            If it cannot be read.
        """

        def copy(number: int) -> int:
            block = self._manifest.blocks[number]
            origin = origin_of(self._manifest, block)
            if block.source is None:
                valid = self._staged.copy(block, self._progress.advance)
            else:
                valid = self._staged.unpack(block, None, self._progress.advance)
            if not valid:
                raise differs(self._manifest, block)
            return origin.end - origin.begin

        blocks = (self._manifest.blocks[number] for number in numbers)
        paths = (origin_of(self._manifest, block).path for block in blocks)
        return sum(map_in_threads(copy, numbers, threads_for(paths, self._options.threads)))

    def _gather_blocks(self, needed: Sequence[int], mine: frozenset[int]) -> int:
        """Bring blocks to all nodes that need them, and return the bytes read here. Collective."""
        manifest = self._manifest
        chunks = cut_chunks(manifest.blocks, needed, chunk_bytes(len(self._readers)))
        done: list[int] = []

        def read(number: int, out: Buffer) -> None:
            chunk = chunks[number]
            origin = origin_of(manifest, manifest.blocks[chunk.block])
            read_shared_into(out, origin.path, chunk.begin, origin.version)
            done.append(out.size)

        arriving = ArrivingChunks(manifest, self._staged, chunks, mine)

        def require_right() -> None:
            if arriving.problems:
                raise arriving.problems[0]

        gather_rounds(
            self._agents,
            [chunk.end - chunk.begin for chunk in chunks],
            read,
            arriving.write,
            self._progress.advance,
            self._on_all_agents,
            read_threads(manifest.source, len(self._readers)),
            self._readers,
        )
        self._on_all_agents(require_right, "comparing what has arrived")
        return sum(done)

    def _finish(self, complete: Collection[int]) -> None:
        """Sync the files that have arrived, and give them their final names."""
        arrived = [file for file in range(len(self._manifest.files)) if file not in complete]
        with ThreadPoolExecutor(SYNCS) as pool:
            list(pool.map(self._staged.finish, arrived))
        if arrived:
            self._staged.sync_names()

    def _require_unchanged(self) -> None:
        """Refuse corpora whose sizes have changed while they were copied. Collective."""
        described = describe(self._manifest.contents)
        own = self._share(list(zip(described, self._manifest.corpora, strict=True)))

        def check() -> None:
            stats = stat_corpora([corpus for corpus, _ in own], self._options.threads)
            problems = [problem for found in stats for problem in found.problems]
            if problems:
                raise CorpusError(*problems)
            for (corpus, local), found in zip(own, stats, strict=True):
                if local.bin_version not in (None, found.bin):
                    raise ObjectChanged(bin_path(corpus.prefix))

        self._on_all_agents(check, "examining corpora again")

    def _with_time(self, corpus: LocalCorpus) -> LocalCorpus:
        """Return a corpus with the time of its `.bin` in the store, if it has one."""
        if not corpus.bin_size:
            return corpus
        found = os.lstat(bin_path(self._store.prefix(corpus.stem)))
        return msgspec.structs.replace(corpus, bin_modified=found.st_mtime_ns)

    def _mark_ready(self) -> Ready:
        """Add the links and Megatron's files, then write the ready record."""
        store, manifest, asked = self._store, self._manifest, self._asked
        if asked.tokens != "none":
            link_tokens(store, manifest)
        view = None if asked.naming is None else make_view(store, manifest, asked.naming)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with closing_fd(os.open(store.use_lock(manifest.name), flags, 0o600)) as descriptor:
            set_time(descriptor)
        record = Ready(
            name=manifest.name,
            key=manifest.contents.key,
            source=manifest.source,
            size=manifest.files[CACHE].size,
            corpora=tuple(map(self._with_time, manifest.corpora)),
            request=asked,
            megatron=view,
            when=datetime.now(UTC).isoformat(timespec="seconds"),
            host=node_name(os.environ),
            distcache=__version__,
            modified=os.lstat(manifest.files[CACHE].final).st_mtime_ns,
        )
        write_record(store, record)
        return record
