"""The steps by which an agent copies a cache to its node; all agents agree on each."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from enum import Enum
from typing import Final

from distcache import __version__
from distcache.corpus import bin_path
from distcache.errors import CorpusError, DistcacheError, ObjectChanged
from distcache.node.local_state import (
    Duplicate,
    LocalState,
    find_duplicates,
    has_final,
    require_same_content,
    verify_local,
)
from distcache.node.lock import try_exclusive
from distcache.node.manifest import CACHE, Manifest, describe, stat_corpora
from distcache.node.records import (
    NodeReport,
    Ready,
    bytes_to_copy,
    invalidate,
    make_report,
    read_record,
    write_record,
)
from distcache.node.store import sweep
from distcache.node.transport import Localization, copy_duplicates, fetch
from distcache.node.upkeep import bytes_of, make_room
from distcache.node.view import link_tokens, make_view, missing_view_bytes
from distcache.ranks.agreement import on_all_ranks, own_share
from distcache.ranks.job_environment import node_name
from distcache.storage.files import closing_fd, is_plain_file, set_time
from distcache.storage.space import allocated, require_space

SYNCS: Final = 8  # files that are synced at a time: the filesystem does them together


def stage(run: Localization) -> tuple[Ready, NodeReport]:
    """Fetch the blocks that are missing or invalid, and mark the copy ready. Collective.

    Returns
    -------
    Ready, NodeReport
        Content of the store now, and the report of this agent.

    Raises
    ------
    DistcacheError
        On all agents the same; then no store has a new ready record. A copy in use is unchanged
        until a valid one replaces it.
    """
    store, manifest, options, progress = run.store, run.manifest, run.options, run.progress
    everything = range(len(manifest.blocks))
    progress.phase("verifying the local copy", run.bytes_of(everything))
    found = run.on_all_agents_watched(lambda: _verify(run), "verifying the local copy")
    _confirm(run, found)
    with contextlib.ExitStack() as held:
        repair = _make_room(run, found, held)
        progress.phase("copying", run.bytes_of(set(everything) - found.right))
        reused, read = _copy(run, found, repair)
        progress.phase("syncing")
        run.on_all_agents_watched(lambda: _finish(run, found.complete), "completing files")
        _require_unchanged(run)
        if options.megatron:
            progress.phase("writing Megatron's files")
        record = run.on_all_agents_watched(lambda: _mark_ready(run), "writing the ready record")

    def report() -> NodeReport:
        return make_report(
            store,
            record,
            read=read,
            reused=run.bytes_of(reused),
            written=run.staged.written,
            kept=run.bytes_of(found.right),
            beyond=0 if options.budget is None else max(bytes_of(store) - options.budget, 0),
        )

    return record, on_all_ranks(run.agents, report, "reporting")


def _verify(run: Localization) -> LocalState:
    record = read_record(run.store, run.manifest.name) if run.options.quick else None
    return verify_local(run.manifest, run.options.threads, run.progress.advance, record)


def _confirm(run: Localization, found: LocalState) -> None:
    """Check shared indices whose time has changed by their digests, each once. Collective."""
    agents, manifest = run.agents, run.manifest
    shares = agents.allgather(sorted(found.dated), list[int], "indices whose time has changed")
    dated = sorted({file for share in shares for file in share})
    own = own_share(agents, dated)
    try:
        run.on_all_agents_watched(
            lambda: require_same_content(manifest, own), "reading shared indices"
        )
    except CorpusError:
        invalidate(run.store, manifest.name)  # the tokens have changed with the index
        raise

    def set_times() -> None:
        for file in found.dated:
            target = manifest.files[file]
            set_time(target.final, target.modified)

    run.on_all_agents_watched(set_times, "setting times")


def _require_unchanged(run: Localization) -> None:
    """Refuse corpora whose sizes have changed while they were copied. Collective."""
    some = slice(run.agents.rank, None, run.agents.size)
    own = list(zip(describe(run.manifest.contents)[some], run.manifest.corpora[some], strict=True))

    def check() -> None:
        stats = stat_corpora([corpus for corpus, _ in own], run.options.threads)
        problems = [problem for found in stats for problem in found.problems]
        if problems:
            raise CorpusError(*problems)
        for (corpus, local), found in zip(own, stats, strict=True):
            if local.bin_version not in (None, found.bin):
                raise ObjectChanged(bin_path(corpus.prefix))

    run.on_all_agents_watched(check, "examining corpora again")


def _copy(run: Localization, found: LocalState, repair: Repair) -> tuple[frozenset[int], int]:
    """Copy blocks that are missing, from other caches of the store where they are. Collective.

    Returns
    -------
    reused : frozenset of int
        Blocks that other caches had.
    read : int
        Bytes that this agent has read from the shared filesystem.
    """

    def reuse() -> tuple[frozenset[int], frozenset[int]]:
        blocks = run.manifest.blocks
        own: dict[int, Duplicate] = {}
        if repair is Repair.BESIDE:
            path = str(run.manifest.files[CACHE].final)
            own = {
                number: Duplicate(path, block.begin)
                for number, block in enumerate(blocks)
                if block.file == CACHE and number in found.right
            }
        kept = copy_duplicates(run, own)
        lost = own.keys() - kept
        missing = [n for n in range(len(blocks)) if n not in found.right or n in lost]
        places = dict(find_duplicates(run.store, run.manifest, missing))
        reused = copy_duplicates(run, places)
        return reused, frozenset(missing) - reused

    reused, mine = run.on_all_agents_watched(reuse, "copying from other caches")
    return reused, fetch(run, sorted(mine))


def _make_room(run: Localization, found: LocalState, held: contextlib.ExitStack) -> Repair:
    """Reserve all space on all nodes before anything is changed on any. Collective."""
    repair = run.on_all_agents_watched(
        lambda: _choose_repair(run, found, held), "checking for users"
    )
    try:
        run.on_all_agents_watched(lambda: _reserve(run, found, repair), "reserving space")
    except DistcacheError:
        run.staged.undo()
        raise
    run.on_all_agents_watched(lambda: _withdraw(run, repair), "preparing the repair")
    return repair


class Repair(Enum):
    """How an invalid copy is repaired."""

    NONE = "nothing to repair"
    UNUSED = "only indices, which nobody uses"
    IN_PLACE = "nobody uses it"
    BESIDE = "it is in use: a new file replaces it by a rename"


def _choose_repair(run: Localization, found: LocalState, held: contextlib.ExitStack) -> Repair:
    """Decide how to repair the cache; if nobody uses it, lock it against new users."""
    cache = run.manifest.files[CACHE]
    if len(found.complete) == len(run.manifest.files):
        return Repair.NONE
    lock = run.store.use_lock(run.manifest.name)
    descriptor = try_exclusive(lock) if lock.exists() else None
    used = lock.exists() and descriptor is None
    if descriptor is not None:
        held.callback(os.close, descriptor)
    exists = is_plain_file(cache.final) and not os.path.lexists(cache.part)
    if CACHE in found.complete or not exists:
        return Repair.NONE if used else Repair.UNUSED
    return Repair.BESIDE if used else Repair.IN_PLACE


def _reserve(run: Localization, found: LocalState, repair: Repair) -> None:
    """Reserve the space of this node's files."""
    store, manifest, options = run.store, run.manifest, run.options
    sweep(store)
    incomplete = [file for file in range(len(manifest.files)) if file not in found.complete]
    needed = sum(_growth(manifest, file, repair) for file in incomplete)
    if options.megatron:
        needed += missing_view_bytes(store, manifest, options.naming)
    if options.budget is not None:
        later = bytes_to_copy(store, manifest.corpora)
        make_room(store, options.budget - needed - later, manifest)
    advice = "free space with `distcache local gc`, or choose another directory with --store"
    require_space(store.root, needed, advice, spare=options.reserve)
    for file in incomplete:
        in_place = file == CACHE and repair is Repair.IN_PLACE
        if not in_place and not _is_repaired_in_place(manifest, file):
            run.staged.make(file)


def _is_repaired_in_place(manifest: Manifest, file: int) -> bool:
    """Return whether a `.bin` exists and is repaired under its name.

    Readers find right bytes sooner, and never other ones: a digest of its content is part of its
    name.
    """
    target = manifest.files[file]
    return target.kind != "whole" and has_final(target)


def _withdraw(run: Localization, repair: Repair) -> None:
    """Mark an unused copy incomplete; while it is repaired it has no final name."""
    if repair in (Repair.UNUSED, Repair.IN_PLACE):
        invalidate(run.store, run.manifest.name)
    if repair is Repair.IN_PLACE:
        os.replace(run.manifest.files[CACHE].final, run.manifest.files[CACHE].part)
        run.staged.make(CACHE)


def _growth(manifest: Manifest, file: int, repair: Repair) -> int:
    """Return the additional bytes that a file will take on the disk."""
    target = manifest.files[file]
    in_place = _is_repaired_in_place(manifest, file) or (
        file == CACHE and repair is Repair.IN_PLACE
    )
    return max(target.size - allocated(target.final if in_place else target.part), 0)


def _finish(run: Localization, complete: Collection[int]) -> None:
    """Sync the files that have arrived, and give them their final names."""
    arrived = [file for file in range(len(run.manifest.files)) if file not in complete]
    with ThreadPoolExecutor(SYNCS) as pool:
        list(pool.map(run.staged.finish, arrived))
    if arrived:
        run.staged.sync_names()


def _mark_ready(run: Localization) -> Ready:
    """Add the links and Megatron's files, then write the ready record."""
    store, manifest, options = run.store, run.manifest, run.options
    if options.link:
        link_tokens(store, manifest)
    view = make_view(store, manifest, options.naming) if options.megatron else None
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with closing_fd(os.open(store.use_lock(manifest.name), flags, 0o600)) as descriptor:
        set_time(descriptor)
    assert options.shards is not None, "joined with an earlier request"
    record = Ready(
        name=manifest.name,
        key=manifest.contents.key,
        source=manifest.source,
        size=manifest.files[CACHE].size,
        corpora=manifest.corpora,
        linked=options.link,
        copied=options.copy,
        behind=options.behind,
        share=options.share if options.behind else 0.0,
        reserve=options.reserve if options.behind else 0,
        read_ahead=options.read_ahead,
        megatron=view,
        tokenizer=options.naming.tokenizer,
        releases=options.naming.releases,
        fim=options.naming.fim,
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        host=node_name(os.environ),
        distcache=__version__,
        modified=os.lstat(manifest.files[CACHE].final).st_mtime_ns,
        shards=options.shards,
    )
    write_record(store, record)
    return record
