"""Which rank builds what, and the predicted time and memory; pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from distcache.errors import NoSpace
from distcache.plan.costs import UnitCosts
from distcache.plan.layout import Layout
from distcache.plan.memory import BASE_MEMORY, rest_memory, step_memory, upper_memory
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


class SplitUnit(msgspec.Struct, frozen=True):
    """A large section that all ranks build together."""

    unit: int  # index into `Layout.units`
    upper_rank: int  # the rank that shuffles the upper part of the documents
    rest_rank: int  # the rank that computes the remaining shuffles


Waves = tuple[tuple[SplitUnit, ...], ...]


class Assignment(msgspec.Struct, frozen=True):
    """The work of every rank."""

    # large sections; those of one wave are shuffled at the same time by different ranks, then cut
    # by all ranks, one after the other
    waves: Waves
    # large sections of which no rank holds more than a slice; all ranks build each together
    linked: tuple[int, ...]
    # large blends, as indices into `Layout.units`; all ranks draw each together
    blends: tuple[int, ...]
    # units that each rank builds alone, as indices into `Layout.units`
    local: tuple[tuple[int, ...], ...]
    threads: int  # units that a rank builds at a time
    memory: tuple[int, ...]  # predicted peak memory of each rank in bytes
    # predicted work of each rank, in the nanoseconds of `distcache.plan.costs`
    busy: tuple[float, ...]

    @property
    def split_sections(self) -> tuple[int, ...]:
        """The sections that all ranks build together, as indices into `Layout.units`."""
        return tuple(entry.unit for wave in self.waves for entry in wave) + self.linked


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
    blends = _large_blends(costs, todo - copied, ranks)
    found = [
        _share_out(costs, todo, split, blends, ranks, count, linked=linked)
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
    """Return whether to split sections by links, or not, or to try both."""
    able = split and all(costs[unit].can_be_linked for unit in split)
    return (False, True) if able else (False,)


def _large_blends(costs: Sequence[UnitCosts], todo: frozenset[int], ranks: int) -> tuple[int, ...]:
    """Return the blends that are a large share of the work, and large enough for slices."""
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
    blends: tuple[int, ...],
    ranks: int,
    threads: int,
    *,
    linked: bool,
) -> Assignment:
    waves = () if linked else _waves(split, ranks)
    alone = sorted(todo.difference(split, blends))
    together = _wave_time(costs, waves, ranks)
    if linked:
        together += sum(costs[unit].linked_time(ranks) for unit in split)
    together += sum(costs[unit].time / costs[unit].slices(ranks) for unit in blends)
    shares = balance([costs[unit].time for unit in alone], ranks)
    local = tuple(tuple(alone[index] for index in share) for share in shares)
    memory = tuple(
        _memory(costs, waves, own, rank, ranks, threads) for rank, own in enumerate(local)
    )
    shared = [costs[unit].memory(threads) for unit in blends]
    shared += [costs[unit].linked_memory(ranks) for unit in split if linked]
    memory = tuple(max(held, BASE_MEMORY + max(shared, default=0)) for held in memory)
    busy = tuple(together + _local_time(costs, own, threads) for own in local)
    whole = tuple(split) if linked else ()
    return Assignment(waves, whole, blends, local, threads, memory, busy)


def _waves(split: Sequence[int], ranks: int) -> Waves:
    at_once = max(ranks // 2, 1)
    return tuple(
        tuple(
            SplitUnit(unit, 2 * place, 2 * place + 1)
            for place, unit in enumerate(split[begin : begin + at_once])
        )
        for begin in range(0, len(split), at_once)
    )


def _wave_time(costs: Sequence[UnitCosts], waves: Waves, ranks: int) -> float:
    """Return the time of the sections that all ranks build together."""
    time = 0.0
    for wave in waves:
        # All ranks wait for the last shuffle of the wave, and then cut together.
        time += max(costs[member.unit].shuffle_time for member in wave)
        time += sum(costs[member.unit].cut_time(ranks) for member in wave)
    return time


def _local_time(costs: Sequence[UnitCosts], units: Sequence[int], threads: int) -> float:
    """Return the time of the units that a rank builds alone, several at a time."""
    if not units:
        return 0.0
    longest = max(costs[unit].time_with(threads) for unit in units)
    return max(longest, sum(costs[unit].time for unit in units) / threads)


def _memory(
    costs: Sequence[UnitCosts],
    waves: Waves,
    local: tuple[int, ...],
    rank: int,
    ranks: int,
    threads: int,
) -> int:
    alone = sorted((costs[unit].memory(threads) for unit in local), reverse=True)
    peaks = [sum(alone[:threads])]
    for wave in waves:
        held = step_memory(ranks)
        for member in wave:
            section = costs[member.unit].section
            if rank == member.upper_rank:
                held += upper_memory(section, ranks)
            if rank == member.rest_rank:
                held += rest_memory(section)
        peaks.append(held)
    return BASE_MEMORY + max(peaks)


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
