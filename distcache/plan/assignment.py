"""Which rank builds what, and the predicted time and memory; pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from distcache.errors import NoSpace
from distcache.plan.costs import UnitCosts
from distcache.plan.layout import Layout
from distcache.plan.memory import BASE_MEMORY
from distcache.plan.model import BlendPlan, Plan, SectionPlan
from distcache.ranks.partition import balance
from distcache.storage.units import size_text

START: Final = 0.3  # seconds: Python, its imports, and joining the ranks
PER_CORPUS: Final = 2.5e-4  # opening an index, and its share of the tables
PER_ITEM: Final = 1e-4  # planning a section or a blend
PER_ARRAY: Final = 1e-5  # its place, and its row in a table
PER_INDEX_BYTE: Final = 0.2e-9  # checking and digesting an index
PER_CACHE_BYTE: Final = 0.3e-9  # reading back and digesting what was written
# Seconds per predicted nanosecond: first touches of memory and syncs of the disk included.
PER_BUSY: Final = 1.3e-9
# What Slurm is asked for leaves room: other machines, a busy filesystem, the page cache.
TIME_MARGIN: Final = 4.0
LEAST_MINUTES: Final = 10
MEMORY_MARGIN: Final = 1.25
NODE_MEMORY: Final = 512 << 20


class Assignment(msgspec.Struct, frozen=True):
    """The work of every rank."""

    # Indices into `Layout.units`. All ranks build these together, one after the other.
    halved: tuple[int, ...]  # sections that two ranks shuffle
    linked: tuple[int, ...]  # sections that all ranks shuffle, each its slice
    sliced: tuple[int, ...]  # blends and packed sections, of which each rank builds a slice
    local: tuple[tuple[int, ...], ...]  # units that each rank builds alone
    threads: int  # units that a rank builds at a time
    memory: tuple[int, ...]  # predicted peak memory of each rank in bytes
    # predicted work of each rank, in the nanoseconds of `distcache.plan.costs`
    busy: tuple[float, ...]

    @property
    def split_sections(self) -> tuple[int, ...]:
        """The sections that all ranks build together, as indices into `Layout.units`."""
        return self.halved + self.linked


def assign(
    items: Sequence[SectionPlan | BlendPlan],
    layout: Layout,
    todo: frozenset[int],
    ranks: int,
    threads: int = 1,
    memory_limit: int | None = None,
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
    todo : frozenset of int
        The units that are still to be built.
    ranks, threads : int
        Number of ranks, and of units that each may build at a time.
    memory_limit : int or None
        Bytes that no rank may exceed.
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
    costs = [
        UnitCosts(unit, items, copied=index in copied) for index, unit in enumerate(layout.units)
    ]
    choices = _choices(layout, costs, todo - copied, ranks, memory_limit)
    sliced = _sliced(costs, todo - copied, ranks)
    found = [
        _share_out(costs, todo, split, sliced, ranks, count, linked=linked)
        for split in choices
        for linked in _ways(costs, split)
        for count in range(threads, 0, -1)
    ]
    fitting = [work for work in found if memory_limit is None or max(work.memory) <= memory_limit]
    if fitting:
        return min(fitting, key=lambda work: max(work.busy))
    least = min(max(work.memory) for work in found)
    raise NoSpace(
        f"--memory-limit {memory_limit}: a rank needs {size_text(least)} ({least} "
        "bytes) to hold the section it shuffles; no assignment to ranks makes that less"
    )


def assign_all(
    items: Sequence[SectionPlan | BlendPlan],
    layout: Layout,
    ranks: int,
    threads: int = 1,
    memory_limit: int | None = None,
) -> Assignment:
    """Distribute all units of a plan, as `assign` does for a new build."""
    everything = frozenset(range(len(layout.units)))
    return assign(items, layout, everything, ranks, threads, memory_limit)


def _choices(
    layout: Layout,
    costs: Sequence[UnitCosts],
    todo: frozenset[int],
    ranks: int,
    memory_limit: int | None,
) -> list[list[int]]:
    """Return candidate sets of units to split, the largest set first.

    All ranks take part in splitting a unit, one unit after the other: it pays where a few units are
    most of the work, and costs where there are enough of them for all ranks.
    """
    able = [unit for unit in sorted(todo) if layout.units[unit].splittable and ranks > 1]
    large = sorted(_large(costs, todo, able, ranks), key=lambda unit: -costs[unit].time)
    limit = math.inf if memory_limit is None else memory_limit
    too_large = {unit for unit in able if BASE_MEMORY + costs[unit].memory(1) > limit}
    counts = {len(large), *(2**power for power in range(len(large).bit_length())), 0}
    return [sorted(too_large.union(large[:count])) for count in sorted(counts, reverse=True)]


def _ways(costs: Sequence[UnitCosts], split: Sequence[int]) -> tuple[bool, ...]:
    """Return the values of `linked` to try."""
    able = split and all(costs[unit].can_be_linked for unit in split)
    return (False, True) if able else (False,)


def _sliced(costs: Sequence[UnitCosts], todo: frozenset[int], ranks: int) -> tuple[int, ...]:
    """Return the units that are a large share of the work, and large enough for slices."""
    able = [unit for unit in sorted(todo) if costs[unit].slices(ranks) > 1]
    return tuple(_large(costs, todo, able, ranks))


def _large(
    costs: Sequence[UnitCosts], todo: frozenset[int], able: Sequence[int], ranks: int
) -> list[int]:
    """Return the units that are a large share of the work of a rank."""
    total = sum(costs[unit].time for unit in todo)
    return [unit for unit in able if costs[unit].time > total / (2 * ranks)]


def _share_out(
    costs: Sequence[UnitCosts],
    todo: frozenset[int],
    split: list[int],
    sliced: tuple[int, ...],
    ranks: int,
    threads: int,
    *,
    linked: bool,
) -> Assignment:
    """Return the assignment that splits these units, with its predicted time and memory."""
    alone = sorted(todo.difference(split, sliced))
    together = sum(costs[unit].time / costs[unit].slices(ranks) for unit in sliced)
    together += sum(
        costs[unit].linked_time(ranks) if linked else costs[unit].halved_time(ranks)
        for unit in split
    )
    shares = balance([costs[unit].time for unit in alone], ranks)
    local = tuple(tuple(alone[index] for index in share) for share in shares)
    busy = tuple(together + _local_time(costs, own, threads) for own in local)
    memory = []
    for rank, own in enumerate(local):
        at_once = sorted((costs[unit].memory(threads) for unit in own), reverse=True)[:threads]
        held = [costs[unit].memory(threads) for unit in sliced]
        held += [
            costs[unit].linked_memory(ranks) if linked else costs[unit].halved_memory(rank, ranks)
            for unit in split
        ]
        memory.append(BASE_MEMORY + max([sum(at_once), *held]))
    halved, by_links = ((), tuple(split)) if linked else (tuple(split), ())
    return Assignment(halved, by_links, sliced, local, threads, tuple(memory), busy)


def _local_time(costs: Sequence[UnitCosts], units: Sequence[int], threads: int) -> float:
    """Return the time of the units that a rank builds alone, several at a time."""
    if not units:
        return 0.0
    longest = max(costs[unit].time_with(threads) for unit in units)
    return max(longest, sum(costs[unit].time for unit in units) / threads)


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
        Estimate for the machine of the calibration, and a filesystem that is not the limit.
    """
    ranks = len(work.local)
    streams = ranks * work.threads
    index_bytes = sum(source.idx_size for source in plan.sources)
    arrays = sum(len(places) for places in layout.arrays)
    alone = START + PER_ITEM * len(plan.items) + PER_ARRAY * arrays
    shared = PER_CORPUS * len(plan.sources) + PER_INDEX_BYTE * index_bytes
    shared += PER_CACHE_BYTE * layout.tables_begin
    seconds = alone + shared / streams + PER_BUSY * max(work.busy)
    memory = max(work.memory)
    return Estimate(
        seconds=seconds,
        memory=memory,
        minutes=max(math.ceil(TIME_MARGIN * seconds / 60), LEAST_MINUTES),
        memory_gib=math.ceil((MEMORY_MARGIN * memory * ranks_per_node + NODE_MEMORY) / 2**30),
    )
