"""Who builds what, and how much memory that takes: pure functions of sizes and rank counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from distcache.errors import NoSpace
from distcache.plan.balance import balance
from distcache.plan.layout import Layout, Unit, nbytes_of
from distcache.plan.model import BlendPlan, SectionPlan
from distcache.plan.slices import lower_type, middle_of

__all__ = [
    "BASE_MEMORY",
    "CHUNK_BYTES",
    "ENTRY_BYTES",
    "Assignment",
    "SplitUnit",
    "assign",
    "stream_step",
    "workers_of",
]

# Measured nanoseconds on one core of an AMD EPYC 9005; only their ratios matter.
SHUFFLE_COST: Final = 5.0
SKIP_COST: Final = 1.3
EMIT_COST: Final = 6.0
BLEND_COST: Final = 60.0
WRITE_COST_PER_BYTE: Final = 0.6

# The interpreter with NumPy, HDF5 and MPI, and the buffers of reading back.
BASE_MEMORY: Final = 160 << 20
# Sample indices and blends are made and written in chunks of this many bytes.
CHUNK_BYTES: Final = 8 << 20
# A document and its length, while a document index is made.
ENTRY_BYTES: Final = 8

# Entries on their way to all ranks at a time, and the least to one: a stripe of documents.
STREAM_STEP: Final = 1 << 21
LEAST_STEP: Final = 1 << 18


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


class Assignment(msgspec.Struct, frozen=True):
    """The work of every rank.

    Attributes
    ----------
    waves : tuple of tuple of SplitUnit
        Large sections; those of one wave are shuffled at the same time by different ranks, then
        cut by all ranks, one after the other.
    local : tuple of tuple of int
        For each rank, the units it builds alone, as indices into `Layout.units`.
    threads : int
        Units that a rank builds at a time.
    memory : tuple of int
        Predicted peak memory of each rank in bytes.
    """

    waves: tuple[tuple[SplitUnit, ...], ...]
    local: tuple[tuple[int, ...], ...]
    threads: int
    memory: tuple[int, ...]


def workers_of(splittable: bool, threads: int) -> int:
    """Return the threads that build one unit: a large section alone is worth two."""
    return 2 if splittable and threads > 1 else 1


def stream_step(ranks: int) -> int:
    """Return the entries that each rank takes at a time of a section that is split."""
    return max(STREAM_STEP // ranks // LEAST_STEP, 1) * LEAST_STEP


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

    Small units go whole to one rank, the longest first. A section that is a large share of the
    work, or too large for one rank's memory, is split over all ranks.

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
        The units that need no memory, because another cache has all of their arrays.

    Returns
    -------
    Assignment
        With as many threads as the limit allows.

    Raises
    ------
    NoSpace
        If even one unit at a time exceeds the limit.
    """
    sizes = [_UnitSize(layout.units[unit], items) for unit in range(len(layout.units))]
    split = _choose_split(layout, sizes, todo - copied, ranks, memory_limit)
    waves = _waves(split, ranks)
    loads = _loads(sizes, waves, ranks)
    alone = sorted(todo - set(split))
    shares = balance([sizes[unit].cost for unit in alone], ranks, loads)
    local = tuple(tuple(alone[index] for index in share) for share in shares)
    for count in range(threads, 0, -1):
        memory = tuple(_memory(sizes, waves, local, rank, ranks, count) for rank in range(ranks))
        if memory_limit is None or max(memory) <= memory_limit:
            return Assignment(waves, local, count, memory)
    raise NoSpace(
        f"--memory-limit {memory_limit}: a rank needs {max(memory)} bytes to hold the section it "
        "shuffles; no assignment to ranks makes that less"
    )


class _UnitSize:
    """The cost and the memory of one unit, whole or split."""

    def __init__(self, unit: Unit, items: Sequence[SectionPlan | BlendPlan]) -> None:
        self.members = [items[index] for index in unit.items]
        self.cost = sum(map(_cost, self.members))
        self._splittable = unit.splittable

    def memory(self, threads: int) -> int:
        workers = workers_of(self._splittable, threads)
        return max(_memory_whole(member, workers) for member in self.members)

    @property
    def section(self) -> SectionPlan:
        (section,) = self.members
        assert isinstance(section, SectionPlan)
        return section


def _nbytes(item: SectionPlan | BlendPlan, name: str) -> int:
    return nbytes_of(*item.arrays[name])


def _cost(item: SectionPlan | BlendPlan) -> float:
    written = WRITE_COST_PER_BYTE * sum(nbytes_of(*array) for array in item.arrays.values())
    if isinstance(item, BlendPlan):
        return BLEND_COST * item.size + written
    shuffled = SHUFFLE_COST * (item.documents + item.shuffled_samples)
    return shuffled + EMIT_COST * item.documents + written


def _memory_whole(item: SectionPlan | BlendPlan, workers: int) -> int:
    if isinstance(item, BlendPlan):
        return 2 * CHUNK_BYTES
    middle = middle_of(item, workers)
    lower = lower_type(middle).itemsize * middle
    entries = ENTRY_BYTES * item.documents
    return entries + lower + _nbytes(item, "shuffle_index") + 4 * CHUNK_BYTES


def _choose_split(
    layout: Layout,
    sizes: Sequence[_UnitSize],
    todo: frozenset[int],
    ranks: int,
    memory_limit: int | None,
) -> list[int]:
    total = sum(sizes[unit].cost for unit in todo)
    return [
        unit
        for unit in sorted(todo)
        if ranks > 1
        and layout.units[unit].splittable
        and (
            sizes[unit].cost > total / (2 * ranks)
            or (memory_limit is not None and BASE_MEMORY + sizes[unit].memory(1) > memory_limit)
        )
    ]


def _waves(split: Sequence[int], ranks: int) -> tuple[tuple[SplitUnit, ...], ...]:
    at_once = max(ranks // 2, 1)
    return tuple(
        tuple(
            SplitUnit(unit, 2 * place, 2 * place + 1)
            for place, unit in enumerate(split[begin : begin + at_once])
        )
        for begin in range(0, len(split), at_once)
    )


def _loads(
    sizes: Sequence[_UnitSize], waves: tuple[tuple[SplitUnit, ...], ...], ranks: int
) -> list[float]:
    loads = [0.0] * ranks
    for wave in waves:
        longest = 0.0
        for entry in wave:
            section = sizes[entry.unit].section
            longest = max(longest, SHUFFLE_COST * section.documents / 2)
            shared = EMIT_COST * section.documents / ranks
            loads = [load + shared for load in loads]
        # All ranks meet when the wave's last shuffle is done.
        loads = [load + longest for load in loads]
    return loads


def _memory(
    sizes: Sequence[_UnitSize],
    waves: tuple[tuple[SplitUnit, ...], ...],
    local: tuple[tuple[int, ...], ...],
    rank: int,
    ranks: int,
    threads: int,
) -> int:
    alone = sorted((sizes[unit].memory(threads) for unit in local[rank]), reverse=True)
    peaks = [sum(alone[:threads])]
    for wave in waves:
        held = slices = 0
        for entry in wave:
            section = sizes[entry.unit].section
            middle = middle_of(section, workers=2)
            lower = lower_type(middle).itemsize * middle
            upper = ENTRY_BYTES * section.first_documents
            if rank == entry.upper_rank:
                held += upper + lower
            if rank == entry.rest_rank:
                last = ENTRY_BYTES * section.documents - upper
                held += lower + last + _nbytes(section, "shuffle_index")
            # A step's entries and their documents; rows are passed on in chunks.
            slices = 2 * ENTRY_BYTES * stream_step(ranks) + 2 * CHUNK_BYTES
        peaks.append(held + slices)
    return BASE_MEMORY + max(peaks)
