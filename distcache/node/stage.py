"""The steps by which an agent copies a cache to its node; all agents agree on each."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from enum import Enum
from typing import Final

import msgspec

from distcache import __version__
from distcache.errors import CorpusError, DistcacheError
from distcache.io.files import is_plain_file
from distcache.node.local_state import (
    Duplicate,
    LocalState,
    find_duplicates,
    require_same_content,
    verify_local,
)
from distcache.node.lock import try_exclusive
from distcache.node.manifest import CACHE, Manifest, describe, stat_corpus
from distcache.node.place import node_name
from distcache.node.records import (
    LocalizeOptions,
    NodeReport,
    Ready,
    invalidate,
    make_report,
    read_record,
    write_record,
)
from distcache.node.space import allocated, require_space
from distcache.node.staged_files import StagedFiles
from distcache.node.store import Store, sweep
from distcache.node.transport import copy_duplicates, fetch
from distcache.node.upkeep import bytes_of, make_room
from distcache.node.view import link_tokens, make_view, missing_view_bytes
from distcache.progress import Progress
from distcache.ranks.agreement import on_all_ranks, on_all_ranks_watched
from distcache.ranks.communicator import Communicator

__all__ = ["stage"]

SYNCS: Final = 8  # files that are synced at a time: the filesystem does them together


def stage(
    agents: Communicator,
    store: Store,
    manifest: Manifest,
    options: LocalizeOptions,
    transport: str,
    progress: Progress,
) -> tuple[Ready, NodeReport]:
    """Fetch the blocks that are missing or invalid, and mark the copy ready. Collective.

    Parameters
    ----------
    agents : Communicator
        One of each node.
    store : Store
        This node's, locked.
    manifest : Manifest
        The same files and blocks on all nodes.
    options : LocalizeOptions
        How.
    transport : str
        "mpi" or "copy".
    progress : Progress
        Receives the progress of this agent.

    Returns
    -------
    Ready, NodeReport
        What the store now has, and what this agent did.

    Raises
    ------
    DistcacheError
        On all agents the same; then no store has a new ready record. A copy in use is unchanged
        until a valid one replaces it.
    """
    options = _with_earlier_options(store, manifest, options)
    record = read_record(store, manifest.name) if options.quick else None
    sizes = [block.size for block in manifest.blocks]
    progress.phase("verifying the local copy", sum(sizes))
    found = on_all_ranks_watched(
        agents,
        lambda: verify_local(manifest, options.threads, progress.advance, record),
        "verifying the local copy",
    )
    _confirm(agents, store, manifest, found)
    staged = StagedFiles(manifest)
    with contextlib.ExitStack() as held:
        repair = _make_room(agents, store, manifest, options, found, staged, held)
        missing = [number for number in range(len(sizes)) if number not in found.right]
        progress.phase("copying", sum(sizes[number] for number in missing))
        reused, read = _copy(
            agents, store, manifest, staged, found, repair, options, transport, progress
        )
        progress.phase("syncing")
        on_all_ranks_watched(
            agents, lambda: _finish(manifest, staged, found.complete), "completing files"
        )
        _require_unchanged(agents, manifest)
        if options.megatron:
            progress.phase("writing Megatron's files")
        record = on_all_ranks_watched(
            agents, lambda: _mark_ready(store, manifest, options), "writing the ready record"
        )

    def report() -> NodeReport:
        return make_report(
            store,
            record,
            read=read,
            reused=sum(sizes[number] for number in reused),
            written=staged.written,
            kept=sum(sizes[number] for number in found.right),
            beyond=0 if options.budget is None else max(bytes_of(store) - options.budget, 0),
        )

    return record, on_all_ranks(agents, report, "reporting")


def _confirm(agents: Communicator, store: Store, manifest: Manifest, found: LocalState) -> None:
    """Check shared indices whose time has changed by their digests, each once. Collective."""
    shares = agents.allgather(sorted(found.dated), list[int], "indices whose time has changed")
    dated = sorted({file for share in shares for file in share})
    own = dated[agents.rank :: agents.size]
    try:
        on_all_ranks_watched(
            agents, lambda: require_same_content(manifest, own), "reading shared indices"
        )
    except CorpusError:
        invalidate(store, manifest.name)  # the tokens have changed with the index
        raise

    def set_times() -> None:
        for file in found.dated:
            target = manifest.files[file]
            os.utime(target.final, ns=(target.modified, target.modified), follow_symlinks=False)

    on_all_ranks_watched(agents, set_times, "setting times")


def _require_unchanged(agents: Communicator, manifest: Manifest) -> None:
    """Refuse corpora whose sizes have changed while they were copied. Collective."""
    own = describe(manifest.contents)[agents.rank :: agents.size]

    def check() -> None:
        problems = [problem for corpus in own for problem in stat_corpus(*corpus[:3]).problems]
        if problems:
            raise CorpusError(*problems)

    on_all_ranks_watched(agents, check, "examining corpora again")


def _copy(
    agents: Communicator,
    store: Store,
    manifest: Manifest,
    staged: StagedFiles,
    found: LocalState,
    repair: Repair,
    options: LocalizeOptions,
    transport: str,
    progress: Progress,
) -> tuple[frozenset[int], int]:
    """Copy blocks that are missing, from other caches of the store where they are. Collective.

    Returns
    -------
    reused : frozenset of int
        Blocks that other caches had.
    read : int
        Bytes that this agent has read from the shared filesystem.
    """

    def reuse() -> tuple[frozenset[int], frozenset[int]]:
        own: dict[int, Duplicate] = {}
        if repair is Repair.BESIDE:
            path = str(manifest.files[CACHE].final)
            own = {
                number: Duplicate(path, block.begin)
                for number, block in enumerate(manifest.blocks)
                if block.file == CACHE and number in found.right
            }
        kept = copy_duplicates(manifest, staged, own, options.threads, progress.advance)
        lost = own.keys() - kept
        missing = [n for n in range(len(manifest.blocks)) if n not in found.right or n in lost]
        places = dict(find_duplicates(store, manifest, missing))
        reused = copy_duplicates(manifest, staged, places, options.threads, progress.advance)
        return reused, frozenset(missing) - reused

    reused, mine = on_all_ranks_watched(agents, reuse, "copying from other caches")
    return reused, fetch(
        agents, manifest, staged, sorted(mine), options.threads, transport, progress
    )


def _with_earlier_options(
    store: Store, manifest: Manifest, options: LocalizeOptions
) -> LocalizeOptions:
    """Add what an earlier run was asked for, which this copy continues to have."""
    before = read_record(store, manifest.name)
    if before is None:
        return options
    return msgspec.structs.replace(
        options,
        link=options.link or before.linked,
        megatron=options.megatron or before.megatron is not None,
        tokenizer=options.tokenizer if options.tokenizer is not None else before.tokenizer,
    )


def _make_room(
    agents: Communicator,
    store: Store,
    manifest: Manifest,
    options: LocalizeOptions,
    found: LocalState,
    staged: StagedFiles,
    held: contextlib.ExitStack,
) -> Repair:
    """Reserve all space on all nodes before anything is changed on any. Collective."""
    repair = on_all_ranks_watched(
        agents, lambda: _choose_repair(store, manifest, found, held), "checking for users"
    )
    try:
        on_all_ranks_watched(
            agents,
            lambda: _reserve(store, manifest, options, found, staged, repair),
            "reserving space",
        )
    except DistcacheError:
        staged.undo()
        raise
    on_all_ranks_watched(
        agents, lambda: _withdraw(store, manifest, staged, repair), "preparing the repair"
    )
    return repair


class Repair(Enum):
    """How an invalid copy is repaired."""

    NONE = "nothing to repair"
    UNUSED = "only indices, which nobody uses"
    IN_PLACE = "nobody uses it"
    BESIDE = "it is in use: a new file replaces it by a rename"


def _choose_repair(
    store: Store, manifest: Manifest, found: LocalState, held: contextlib.ExitStack
) -> Repair:
    """Decide how to repair the cache; if nobody uses it, lock it against new users."""
    cache = manifest.files[CACHE]
    if len(found.complete) == len(manifest.files):
        return Repair.NONE
    lock = store.use_lock(manifest.name)
    descriptor = try_exclusive(lock) if lock.exists() else None
    used = lock.exists() and descriptor is None
    if descriptor is not None:
        held.callback(os.close, descriptor)
    exists = is_plain_file(cache.final) and not os.path.lexists(cache.part)
    if CACHE in found.complete or not exists:
        return Repair.NONE if used else Repair.UNUSED
    return Repair.BESIDE if used else Repair.IN_PLACE


def _reserve(
    store: Store,
    manifest: Manifest,
    options: LocalizeOptions,
    found: LocalState,
    staged: StagedFiles,
    repair: Repair,
) -> None:
    """Reserve the space of this node's files."""
    sweep(store)
    incomplete = [file for file in range(len(manifest.files)) if file not in found.complete]
    needed = sum(_growth(manifest, file, repair) for file in incomplete)
    if options.megatron:
        needed += missing_view_bytes(store, manifest, options.tokenizer)
    if options.budget is not None:
        make_room(store, options.budget - needed, manifest)
    require_space(store.root, needed, options.reserve)
    for file in incomplete:
        if file != CACHE or repair is not Repair.IN_PLACE:
            staged.make(file)


def _withdraw(store: Store, manifest: Manifest, staged: StagedFiles, repair: Repair) -> None:
    """Mark an unused copy incomplete; while it is repaired it has no final name."""
    if repair in (Repair.UNUSED, Repair.IN_PLACE):
        invalidate(store, manifest.name)
    if repair is Repair.IN_PLACE:
        os.replace(manifest.files[CACHE].final, manifest.files[CACHE].part)
        staged.make(CACHE)


def _growth(manifest: Manifest, file: int, repair: Repair) -> int:
    """Return the additional bytes that a file will take on the disk."""
    target = manifest.files[file]
    in_place = file == CACHE and repair is Repair.IN_PLACE
    return max(target.size - allocated(target.final if in_place else target.part), 0)


def _finish(manifest: Manifest, staged: StagedFiles, complete: Collection[int]) -> None:
    """Sync the files that have arrived, and give them their final names."""
    arrived = [file for file in range(len(manifest.files)) if file not in complete]
    with ThreadPoolExecutor(SYNCS) as pool:
        list(pool.map(staged.finish, arrived))
    if arrived:
        staged.sync_names()


def _mark_ready(store: Store, manifest: Manifest, options: LocalizeOptions) -> Ready:
    """Add the links and Megatron's files, then write the ready record."""
    if options.link:
        link_tokens(store, manifest)
    view = make_view(store, manifest, options.tokenizer) if options.megatron else None
    descriptor = os.open(
        store.use_lock(manifest.name), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    os.utime(descriptor)
    os.close(descriptor)
    record = Ready(
        name=manifest.name,
        key=manifest.contents.key,
        source=manifest.source,
        size=manifest.files[CACHE].size,
        corpora=manifest.corpora,
        linked=options.link,
        megatron=view,
        tokenizer=options.tokenizer,
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        host=node_name(os.environ),
        distcache=__version__,
        modified=os.lstat(manifest.files[CACHE].final).st_mtime_ns,
    )
    write_record(store, record)
    return record
