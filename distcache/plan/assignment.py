"""Who builds what: a pure function of sizes and rank counts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from distcache.errors import NoSpace
from distcache.plan.costs import (
    BASE_MEMORY,
    UnitCosts,
    rest_memory,
    step_memory,
    upper_memory,
)
from distcache.plan.layout import Layout
from distcache.plan.model import BlendPlan, SectionPlan
from distcache.ranks.balance import balance

__all__ = ["Assignment", "SplitUnit", "assign", "assign_all"]


class SplitUnit(msgspec.Struct, frozen=True):
    """A large section that all ranks build together.

    Attributes
    ----------
    unit : int
        Index into `Layout.units`.
    upper_rank : int
        The rank that shuffles the upper part of the documents.
    rest_rank : int
        The rank that shuffles what the generator does after that.
    """

    unit: int
    upper_rank: int
    rest_rank: int


Waves = tuple[tuple[SplitUnit, ...], ...]


class Assignment(msgspec.Struct, frozen=True):
    """The work of every rank.

    Attributes
    ----------
    waves : tuple of tuple of SplitUnit
        Large sections; those of one wave are shuffled at the same time by different ranks, then
        cut by all ranks, one after the other.
    linked : tuple of int
        Large sections of which no rank holds more than a slice; all ranks build each together.
    blends : tuple of int
        Large blends, as indices into `Layout.units`; all ranks draw each together.
    local : tuple of tuple of int
        For each rank, the units it builds alone, as indices into `Layout.units`.
    threads : int
        Units that a rank builds at a time.
    memory : tuple of int
        Predicted peak memory of each rank in bytes.
    busy : tuple of float
        Predicted work of each rank, in the nanoseconds of `distcache.plan.costs`.
    """

    waves: Waves
    linked: tuple[int, ...]
    blends: tuple[int, ...]
    local: tuple[tuple[int, ...], ...]
    threads: int
    memory: tuple[int, ...]
    busy: tuple[float, ...]

    @property
    def together(self) -> tuple[int, ...]:
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
    """Share out the units of a plan.

    Small units go whole to one rank, the longest first. Sections that are a large share of the
    work are split over all ranks where that is expected to be faster, and those that the memory
    limit does not allow to be built whole.

    Parameters
    ----------
    items : sequence
        `Plan.items`.
    layout : Layout
        Of those items.
    todo : frozenset of int
        The units that are still to be built.
    ranks, threads : int
        How many ranks, and units that each may build at a time.
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
        f"--memory-limit {memory_limit}: a rank needs {least} bytes to hold the section it "
        "shuffles; no assignment to ranks makes that less"
    )


def assign_all(
    items: Sequence[SectionPlan | BlendPlan],
    layout: Layout,
    ranks: int,
    threads: int = 1,
    memory_limit: int | None = None,
) -> Assignment:
    """Share out all units of a plan, as `assign` does for a build that has nothing yet."""
    everything = frozenset(range(len(layout.units)))
    return assign(items, layout, everything, ranks, threads, memory_limit)


def _choices(
    layout: Layout,
    costs: Sequence[UnitCosts],
    todo: frozenset[int],
    ranks: int,
    memory_limit: int | None,
) -> list[list[int]]:
    """Return sets of units to split, the more of the largest ones the earlier.

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
    """Return the blends that are a large share of the work, and enough for slices."""
    able = [unit for unit in sorted(todo) if costs[unit].slices(ranks) > 1]
    return tuple(_large(costs, todo, able, ranks))


def _large(
    costs: Sequence[UnitCosts], todo: frozenset[int], able: Sequence[int], ranks: int
) -> list[int]:
    """Return those units that are a large share of the work of a rank."""
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
    """Return what the sections that all ranks build together take."""
    time = 0.0
    for wave in waves:
        # All ranks meet when the wave's last shuffle is done, and then cut together.
        time += max(costs[member.unit].shuffle_time for member in wave)
        time += sum(costs[member.unit].cut_time(ranks) for member in wave)
    return time


def _local_time(costs: Sequence[UnitCosts], units: Sequence[int], threads: int) -> float:
    """Return what the units that a rank builds alone take, several at a time."""
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
