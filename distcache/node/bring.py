"""The steps of an agent that brings a cache to its node, each agreed by all agents."""

from __future__ import annotations

import os
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Final

import msgspec

from distcache import __version__
from distcache.errors import DistcacheError
from distcache.files import is_plain_file
from distcache.node.copies import copy_elsewhere
from distcache.node.fetch import fetch
from distcache.node.inventory import Inventory, find_elsewhere, take_inventory
from distcache.node.landing import Landing
from distcache.node.place import node_name
from distcache.node.record import Ready, read_record, withdraw, write_record
from distcache.node.report import LocalizeOptions, NodeReport, make_report
from distcache.node.space import allocated, require_space
from distcache.node.store import Store, sweep
from distcache.node.view import link_tokens, make_view, missing_view_bytes, plan_view
from distcache.node.wanted import CACHE, Wanted
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
        On all agents the same; no store then has a ready record that was not there before.
    """
    options = _with_what_is_there(store, wanted, options)
    sizes = [unit.size for unit in wanted.units]
    progress.phase("comparing what is here", sum(sizes))
    found = together(
        agents, lambda: take_inventory(wanted, options.threads, progress.advance), "comparing"
    )
    landing = Landing(wanted)
    _make_room(agents, store, wanted, options, found, landing)
    missing = [number for number in range(len(sizes)) if number not in found.right]
    progress.phase("copying", sum(sizes[number] for number in missing))
    reused, read = _copy(agents, store, wanted, landing, missing, options, transport, progress)
    progress.phase("syncing")
    together(agents, lambda: _finish(wanted, landing, found.complete), "completing files")
    if options.megatron:
        progress.phase("writing Megatron's files")
    record = together(agents, lambda: _declare(store, wanted, options), "declaring it ready")

    def report() -> NodeReport:
        return make_report(
            store,
            record,
            read=read,
            reused=sum(sizes[number] for number in reused),
            written=landing.written,
            kept=sum(sizes[number] for number in found.right),
        )

    return record, together(agents, report, "reporting")


def _copy(
    agents: Communicator,
    store: Store,
    wanted: Wanted,
    landing: Landing,
    missing: list[int],
    options: LocalizeOptions,
    transport: str,
    progress: Progress,
) -> tuple[frozenset[int], int]:
    """Copy units, from other caches of the store where they are; return these, and bytes read."""

    def reuse() -> frozenset[int]:
        places = dict(find_elsewhere(store, wanted, missing))
        return copy_elsewhere(wanted, landing, places, options.threads, progress.advance)

    reused = together(agents, reuse, "copying from other caches")
    mine = [number for number in missing if number not in reused]
    return reused, fetch(agents, wanted, landing, mine, options, transport, progress)


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
) -> None:
    """Reserve all space on all nodes before anything is changed on any. Collective."""
    try:
        together(
            agents, lambda: _reserve(store, wanted, options, found, landing), "reserving space"
        )
    except DistcacheError:
        landing.undo()
        raise
    together(agents, lambda: _take_back(store, wanted, found, landing), "making ready to mend")


def _reserve(
    store: Store, wanted: Wanted, options: LocalizeOptions, found: Inventory, landing: Landing
) -> None:
    """Reserve the space of this node's files."""
    sweep(store)
    incomplete = [file for file in range(len(wanted.files)) if file not in found.complete]
    needed = sum(_growth(wanted, file) for file in incomplete)
    if options.megatron:
        needed += missing_view_bytes(plan_view(store, wanted, options.tokenizer), store, wanted)
    require_space(store.root, needed, options.reserve)
    for file in incomplete:
        if file != CACHE or not _is_mended(wanted):
            landing.make(file)


def _take_back(store: Store, wanted: Wanted, found: Inventory, landing: Landing) -> None:
    """Declare a copy that is not right incomplete; without its name, while it is mended."""
    if len(found.complete) == len(wanted.files):
        return
    withdraw(store, wanted.name)
    if CACHE not in found.complete and _is_mended(wanted):
        os.replace(wanted.files[CACHE].final, wanted.files[CACHE].part)
        landing.make(CACHE)


def _is_mended(wanted: Wanted) -> bool:
    """Tell whether a cache that is not right has its name, and no unfinished one is there."""
    cache = wanted.files[CACHE]
    return is_plain_file(cache.final) and not os.path.lexists(cache.part)


def _growth(wanted: Wanted, file: int) -> int:
    """Return the bytes that a file will take beyond those that it takes now."""
    target = wanted.files[file]
    path = target.final if file == CACHE and _is_mended(wanted) else target.part
    return max(target.size - allocated(path), 0)


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
    )
    write_record(store, record)
    return record
