"""The steps of an agent that brings a cache to its node, each agreed by all agents."""

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
from distcache.files import is_plain_file
from distcache.node.collect import bytes_of, make_room
from distcache.node.copies import copy_elsewhere
from distcache.node.fetch import fetch
from distcache.node.inventory import (
    Elsewhere,
    Inventory,
    find_elsewhere,
    require_same_content,
    take_inventory,
)
from distcache.node.landing import Landing
from distcache.node.local import locally
from distcache.node.lock import lock_alone
from distcache.node.place import node_name
from distcache.node.record import Ready, read_record, withdraw, write_record
from distcache.node.report import LocalizeOptions, NodeReport, make_report
from distcache.node.space import allocated, require_space
from distcache.node.store import Store, sweep
from distcache.node.view import link_tokens, make_view, missing_view_bytes, plan_view
from distcache.node.wanted import CACHE, Wanted, describe, look_at
from distcache.progress import Progress
from distcache.ranks.agreement import together
from distcache.ranks.communicator import Communicator

__all__ = ["bring"]

SYNCS: Final = 8  # files that are synced at a time: the filesystem does them together


def bring(
    agents: Communicator,
    store: Store,
    wanted: Wanted,
    options: LocalizeOptions,
    transport: str,
    progress: Progress,
) -> tuple[Ready, NodeReport]:
    """Fetch what is missing or wrong in this node's store, and declare it ready. Collective.

    Parameters
    ----------
    agents : Communicator
        One of each node.
    store : Store
        This node's, locked.
    wanted : Wanted
        The same files and units on all nodes.
    options : LocalizeOptions
        How.
    transport : str
        "mpi", "copy" or "sbcast".
    progress : Progress
        Told what this agent does.

    Returns
    -------
    Ready, NodeReport
        What is here now, and what this agent did.

    Raises
    ------
    DistcacheError
        On all agents the same; no store then has a ready record that was not there before. A copy
        that is in use stays as it is until a right one takes its name.
    """
    options = _with_what_is_there(store, wanted, options)
    record = read_record(store, wanted.name) if options.quick else None
    sizes = [unit.size for unit in wanted.units]
    progress.phase("verifying the local copy", sum(sizes))
    found = locally(
        agents,
        lambda: take_inventory(wanted, options.threads, progress.advance, record),
        "verifying the local copy",
    )
    _confirm(agents, store, wanted, found)
    landing = Landing(wanted)
    with contextlib.ExitStack() as held:
        mending = _make_room(agents, store, wanted, options, found, landing, held)
        missing = [number for number in range(len(sizes)) if number not in found.right]
        progress.phase("copying", sum(sizes[number] for number in missing))
        reused, read = _copy(
            agents, store, wanted, landing, found, mending, options, transport, progress
        )
        progress.phase("syncing")
        locally(agents, lambda: _finish(wanted, landing, found.complete), "completing files")
        _look_again(agents, wanted)
        if options.megatron:
            progress.phase("writing Megatron's files")
        record = locally(agents, lambda: _declare(store, wanted, options), "declaring it ready")

    def report() -> NodeReport:
        return make_report(
            store,
            record,
            read=read,
            reused=sum(sizes[number] for number in reused),
            written=landing.written,
            kept=sum(sizes[number] for number in found.right),
            beyond=0 if options.budget is None else max(bytes_of(store) - options.budget, 0),
        )

    return record, together(agents, report, "reporting")


def _confirm(agents: Communicator, store: Store, wanted: Wanted, found: Inventory) -> None:
    """See that shared indices of another time are still the same; each is read once. Collective."""
    shares = agents.gather_all(sorted(found.dated), list[int], "indices of another time")
    dated = sorted({file for share in shares for file in share})
    own = dated[agents.rank :: agents.size]
    try:
        locally(agents, lambda: require_same_content(wanted, own), "reading shared indices")
    except CorpusError:
        withdraw(store, wanted.name)  # whose tokens have changed with it
        raise

    def set_times() -> None:
        for file in found.dated:
            target = wanted.files[file]
            os.utime(target.final, ns=(target.modified, target.modified), follow_symlinks=False)

    locally(agents, set_times, "setting times")


def _look_again(agents: Communicator, wanted: Wanted) -> None:
    """Refuse corpora whose sizes have changed while they were copied. Collective."""
    own = describe(wanted.contents)[agents.rank :: agents.size]

    def look() -> None:
        problems = [problem for corpus in own for problem in look_at(*corpus[:3]).problems]
        if problems:
            raise CorpusError(*problems)

    locally(agents, look, "looking at corpora again")


def _copy(
    agents: Communicator,
    store: Store,
    wanted: Wanted,
    landing: Landing,
    found: Inventory,
    mending: Mending,
    options: LocalizeOptions,
    transport: str,
    progress: Progress,
) -> tuple[frozenset[int], int]:
    """Copy units that are missing, from other caches of the store where they are. Collective.

    Returns
    -------
    reused : frozenset of int
        Units that other caches had.
    read : int
        Bytes that this agent has read from the shared filesystem.
    """

    def reuse() -> tuple[frozenset[int], frozenset[int]]:
        own: dict[int, Elsewhere] = {}
        if mending is Mending.BESIDE:
            path = str(wanted.files[CACHE].final)
            own = {
                number: Elsewhere(path, unit.begin)
                for number, unit in enumerate(wanted.units)
                if unit.file == CACHE and number in found.right
            }
        kept = copy_elsewhere(wanted, landing, own, options.threads, progress.advance)
        lost = own.keys() - kept
        missing = [n for n in range(len(wanted.units)) if n not in found.right or n in lost]
        places = dict(find_elsewhere(store, wanted, missing))
        reused = copy_elsewhere(wanted, landing, places, options.threads, progress.advance)
        return reused, frozenset(missing) - reused

    reused, mine = locally(agents, reuse, "copying from other caches")
    return reused, fetch(agents, wanted, landing, sorted(mine), options, transport, progress)


def _with_what_is_there(store: Store, wanted: Wanted, options: LocalizeOptions) -> LocalizeOptions:
    """Keep up what an earlier run was asked for."""
    before = read_record(store, wanted.name)
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
    wanted: Wanted,
    options: LocalizeOptions,
    found: Inventory,
    landing: Landing,
    held: contextlib.ExitStack,
) -> Mending:
    """Reserve all space on all nodes before anything is changed on any. Collective."""
    mending = locally(agents, lambda: _mending(store, wanted, found, held), "looking at users")
    try:
        locally(
            agents,
            lambda: _reserve(store, wanted, options, found, landing, mending),
            "reserving space",
        )
    except DistcacheError:
        landing.undo()
        raise
    locally(agents, lambda: _take_back(store, wanted, landing, mending), "making ready to mend")
    return mending


class Mending(Enum):
    """How a copy that is not right is mended."""

    NONE = "there is nothing to mend"
    UNUSED = "its indices are, and nobody uses them"
    IN_PLACE = "nobody uses it"
    BESIDE = "it is in use, and swapped by a rename"


def _mending(store: Store, wanted: Wanted, found: Inventory, held: contextlib.ExitStack) -> Mending:
    """Say how to mend the cache; while nobody uses it, keep others from beginning to."""
    cache = wanted.files[CACHE]
    if len(found.complete) == len(wanted.files):
        return Mending.NONE
    lock = store.use(wanted.name)
    descriptor = lock_alone(lock) if lock.exists() else None
    used = lock.exists() and descriptor is None
    if descriptor is not None:
        held.callback(os.close, descriptor)
    there = is_plain_file(cache.final) and not os.path.lexists(cache.part)
    if CACHE in found.complete or not there:
        return Mending.NONE if used else Mending.UNUSED
    return Mending.BESIDE if used else Mending.IN_PLACE


def _reserve(
    store: Store,
    wanted: Wanted,
    options: LocalizeOptions,
    found: Inventory,
    landing: Landing,
    mending: Mending,
) -> None:
    """Reserve the space of this node's files."""
    sweep(store)
    incomplete = [file for file in range(len(wanted.files)) if file not in found.complete]
    needed = sum(_growth(wanted, file, mending) for file in incomplete)
    if options.megatron:
        needed += missing_view_bytes(plan_view(store, wanted, options.tokenizer), store, wanted)
    if options.budget is not None:
        make_room(store, options.budget - needed, wanted)
    require_space(store.root, needed, options.reserve)
    for file in incomplete:
        if file != CACHE or mending is not Mending.IN_PLACE:
            landing.make(file)


def _take_back(store: Store, wanted: Wanted, landing: Landing, mending: Mending) -> None:
    """Declare a copy that nobody uses incomplete; without its name, while it is mended."""
    if mending in (Mending.UNUSED, Mending.IN_PLACE):
        withdraw(store, wanted.name)
    if mending is Mending.IN_PLACE:
        os.replace(wanted.files[CACHE].final, wanted.files[CACHE].part)
        landing.make(CACHE)


def _growth(wanted: Wanted, file: int, mending: Mending) -> int:
    """Return the bytes that a file will take beyond those that it takes now."""
    target = wanted.files[file]
    in_place = file == CACHE and mending is Mending.IN_PLACE
    return max(target.size - allocated(target.final if in_place else target.part), 0)


def _finish(wanted: Wanted, landing: Landing, complete: Collection[int]) -> None:
    """Give all files that have arrived their names."""
    arrived = [file for file in range(len(wanted.files)) if file not in complete]
    with ThreadPoolExecutor(SYNCS) as pool:
        list(pool.map(landing.finish, arrived))
    if arrived:
        landing.sync_names()


def _declare(store: Store, wanted: Wanted, options: LocalizeOptions) -> Ready:
    """Add what belongs to the copy, then write its ready record."""
    if options.link:
        link_tokens(store, wanted)
    view = make_view(store, wanted, options.tokenizer) if options.megatron else None
    descriptor = os.open(
        store.use(wanted.name), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    os.utime(descriptor)
    os.close(descriptor)
    record = Ready(
        name=wanted.name,
        key=wanted.contents.key,
        source=wanted.source,
        size=wanted.files[CACHE].size,
        corpora=wanted.corpora,
        linked=options.link,
        megatron=view,
        tokenizer=options.tokenizer,
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        host=node_name(os.environ),
        distcache=__version__,
        modified=os.lstat(wanted.files[CACHE].final).st_mtime_ns,
    )
    write_record(store, record)
    return record
