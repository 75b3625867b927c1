"""Which rank builds what, and the predicted time and memory; pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from distcache.errors import NoSpace
from distcache.plan.costs import READ, SYNCED, TOUCHED, UnitCosts
from distcache.plan.layout import Layout
from distcache.plan.memory import BASE_MEMORY
from distcache.plan.model import BlendPlan, Plan, SectionPlan
from distcache.ranks.partition import balance
from distcache.storage.unfinished_file import SYNC_EVERY
from distcache.storage.units import size_text

# Seconds of Python code on the machine of the cost model.
START: Final = 0.3  # the interpreter and its imports
JOIN: Final = 0.15  # joining the ranks, if there are several
PER_CORPUS: Final = 1e-4  # opening an index, and its share of the tables
PER_ITEM: Final = 5e-5  # planning a section or a blend, its places and its row in a table
INDEX_READS: Final = 2  # an index is digested, and checked
# What Slurm is asked for leaves room: other machines, a busy filesystem, the page cache.
TIME_MARGIN: Final = 4.0
MIN_MINUTES: Final = 10
MEMORY_MARGIN: Final = 1.25
NODE_MEMORY: Final = 512 << 20


class Assignment(msgspec.Struct, frozen=True):
    """The work of every rank."""

    # Indices into `Layout.units`. All ranks build these together, one after the other.
    linked: tuple[int, ...]  # sections that all ranks shuffle, each its slice
    sliced: tuple[int, ...]  # blends and packed sections, of which each rank builds a slice
    local: tuple[tuple[int, ...], ...]  # units that each rank builds alone
    threads: int  # units that a rank builds at a time
    memory: tuple[int, ...]  # predicted peak memory of each rank in bytes
    # predicted work of each rank, in the nanoseconds of `distcache.plan.costs`
    busy: tuple[float, ...]


def assign(
    items: Sequence[SectionPlan | BlendPlan],
    layout: Layout,
    ranks: int,
    threads: int = 1,
    memory_limit: int | None = None,
    todo: frozenset[int] | None = None,
    copied: frozenset[int] = frozenset(),
) -> Assignment:
    """Distribute the units of a plan.

    Small units go whole to one rank, the longest first. Sections that are a large share of the
    work are split over all ranks where that is expected to be faster, and those that the memory
    limit does not allow to be built whole.

    Parameters
    ----------
    items : sequence
        `Plan.items`.
    layout : Layout
        Layout of those items.
    ranks, threads : int
        Number of ranks, and of units that each may build at a time.
    memory_limit : int or None
        Bytes that no rank may exceed.
    todo : frozenset of int or None
        The units that are still to be built; by default all.
    copied : frozenset of int
        The units that take hardly any memory, because another cache has all of their arrays.

    Returns
    -------
    Assignment
        The one that is expected to be the fastest of those that the limit allows.

    Raises
    ------
    NoSpace
        If even one unit at a time exceeds the limit.
    """
    todo = frozenset(range(len(layout.units))) if todo is None else todo
    costs = [
        UnitCosts(unit, items, copied=index in copied) for index, unit in enumerate(layout.units)
    ]
    large = _large(costs, todo, sorted(todo - copied), ranks)
    sliced = tuple(unit for unit in large if costs[unit].slices(ranks) > 1)
    able = [
        unit
        for unit in sorted(todo - copied)
        if ranks > 1 and layout.units[unit].splittable and costs[unit].can_be_linked
    ]
    found = [
        _share_out(costs, todo, linked, sliced, ranks, count)
        for linked in _choices(costs, able, frozenset(large), memory_limit)
        for count in range(threads, 0, -1)
    ]
    fitting = [work for work in found if memory_limit is None or max(work.memory) <= memory_limit]
    if fitting:
        return min(fitting, key=lambda work: max(work.busy))
    found.append(_share_out(costs, todo, [], sliced, ranks, 1))
    least = min(max(work.memory) for work in found)
    raise NoSpace(
        f"--memory-limit {memory_limit}: a rank needs {size_text(least)} ({least} "
        "bytes) to hold the section it shuffles; no assignment to ranks makes that less"
    )


def _large(
    costs: Sequence[UnitCosts], todo: frozenset[int], able: Sequence[int], ranks: int
) -> list[int]:
    """Return the units that are a large share of the work of a rank."""
    total = sum(costs[unit].time for unit in todo)
    return [unit for unit in able if costs[unit].time > total / (2 * ranks)]


def _choices(
    costs: Sequence[UnitCosts], able: Sequence[int], large: frozenset[int], memory_limit: int | None
) -> list[list[int]]:
    """Return candidate sets of sections to link, the largest set first.

    All ranks take part in linking a section, one section after the other: it pays where a few are
    most of the work, and costs where there are enough of them for all ranks.
    """
    largest = sorted(large.intersection(able), key=lambda unit: -costs[unit].time)
    limit = math.inf if memory_limit is None else memory_limit
    too_large = {unit for unit in able if BASE_MEMORY + costs[unit].memory(1) > limit}
    powers = (2**power for power in range(len(largest).bit_length()))
    counts = {len(largest), *powers, 0}
    return [sorted(too_large.union(largest[:count])) for count in sorted(counts, reverse=True)]


def _share_out(
    costs: Sequence[UnitCosts],
    todo: frozenset[int],
    linked: list[int],
    sliced: tuple[int, ...],
    ranks: int,
    threads: int,
) -> Assignment:
    """Return the assignment that links these units, with its predicted time and memory."""
    alone = sorted(todo.difference(linked, sliced))
    shares = balance([costs[unit].time for unit in alone], ranks)
    local = tuple(tuple(alone[index] for index in share) for share in shares)
    together = [costs[unit].memory(threads, ranks) for unit in sliced]
    together += [costs[unit].linked_memory(ranks) for unit in linked]
    memory = []
    for own in local:
        at_once = sorted((costs[unit].memory(threads) for unit in own), reverse=True)[:threads]
        memory.append(BASE_MEMORY + max([sum(at_once), *together]))
    shared = sum(costs[unit].time_with(threads, ranks) for unit in sliced)
    shared += sum(costs[unit].linked_time(ranks) for unit in linked)
    busy = []
    for own in local:
        longest = max((costs[unit].time_with(threads) for unit in own), default=0.0)
        busy.append(shared + max(longest, sum(costs[unit].time for unit in own) / threads))
    return Assignment(tuple(linked), sliced, local, threads, tuple(memory), tuple(busy))


class Estimate(msgspec.Struct, frozen=True):
    """The predicted time and memory of a build, and what to ask Slurm for."""

    seconds: float  # seconds of the whole build
    memory: int  # bytes of the rank that takes most
    minutes: int  # value for ``--time``: several times the estimate
    memory_gib: int  # value for ``--mem``, for each node


def estimate(plan: Plan, layout: Layout, work: Assignment, ranks_per_node: int) -> Estimate:
    """Estimate a build.

    Parameters
    ----------
    plan, layout : Plan, Layout
        Items to build, and their places.
    work : Assignment
        Assignment of the items to ranks.
    ranks_per_node : int
        The most that a node has.

    Returns
    -------
    Estimate
        Estimate for machines like that of the cost model, each with a filesystem as fast as for
        one node alone.
    """
    ranks = len(work.local)
    streams = ranks * work.threads
    index_bytes = sum(source.idx_size for source in plan.sources)
    code = START + (JOIN if ranks > 1 else 0) + PER_ITEM * len(plan.items)
    code += PER_CORPUS * len(plan.sources) / ranks
    read = READ * (INDEX_READS * index_bytes + layout.tables_begin) / streams
    memory = max(work.memory)
    built = max(work.busy) + TOUCHED * (memory - BASE_MEMORY) / work.threads
    # What is written is brought to the disk while the build continues, but for the last of it.
    own_bytes = layout.tables_begin / streams
    last_bytes = min(own_bytes, SYNC_EVERY / work.threads)
    rest = max(SYNCED * own_bytes - built, SYNCED * last_bytes)
    seconds = code + 1e-9 * (read + built + rest)
    return Estimate(
        seconds=seconds,
        memory=memory,
        minutes=max(math.ceil(TIME_MARGIN * seconds / 60), MIN_MINUTES),
        memory_gib=math.ceil((MEMORY_MARGIN * memory * ranks_per_node + NODE_MEMORY) / 2**30),
    )
