"""The cost model: relative time of every unit, and the memory that it takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from distcache.plan.layout import BLEND_SLICE, Unit
from distcache.plan.memory import (
    CHUNK_BYTES,
    ENTRY_BYTES,
    SHUFFLE_SPACE_FROM,
    rest_memory,
    step_memory,
    upper_memory,
)
from distcache.plan.model import BlendPlan, SectionPlan, nbytes_of
from distcache.plan.orders import ORDERS

# Measured nanoseconds on one core of an AMD EPYC 9004; only their ratios matter.
SHUFFLE_COST: Final = 6.0
NEAR_SHUFFLE_COST: Final = 3.0  # of values that fit into the caches
EMIT_COST: Final = 4.0
PACK_COST: Final = 11.0
BLEND_COST: Final = 30.0
WRITE_COST_PER_BYTE: Final = 0.6
SEND_COST_PER_BYTE: Final = 0.4
# For each rank: to go through all draws, and for the links of each of its positions.
DRAW_COST: Final = 1.5
LINK_COST: Final = 240.0
LINK_BYTES: Final = 80
# Buffers of an exchange: numbers, their order, what arrives, and answers.
LINK_PIECES: Final = 160 << 20
NO_LINK: Final = 2**32 - 1
SECOND_WORKER: Final = 1.4  # speed of two threads on one section, relative to one

Item = SectionPlan | BlendPlan


def workers_of(splittable: bool, threads: int) -> int:
    """Return the threads that build one unit: two for a large section."""
    return 2 if splittable and threads > 1 else 1


class UnitCosts:
    """The time and memory of one unit that one rank builds.

    Parameters
    ----------
    unit : Unit
        The unit.
    items : sequence of SectionPlan or BlendPlan
        `Plan.items`.
    copied : bool
        Whether another cache has all of its arrays.
    """

    def __init__(self, unit: Unit, items: Sequence[Item], *, copied: bool) -> None:
        self._members = [items[index] for index in unit.items]
        self._splittable = unit.splittable
        self._is_large = unit.is_large
        self._copied = copied
        self.time = sum(_written(member) if copied else _time(member) for member in self._members)

    def time_with(self, threads: int) -> float:
        """Return the time with some threads; one unit can use two."""
        two = workers_of(self._splittable, threads) > 1 and not self._copied
        return self.time / SECOND_WORKER if two else self.time

    def halved_time(self, ranks: int) -> float:
        """Return the time of a section that two ranks shuffle, and all cut and write."""
        section = self.section
        shuffled = SHUFFLE_COST * section.documents / 2
        sent = SEND_COST_PER_BYTE * ENTRY_BYTES * section.documents
        return shuffled + sent + self._cut_time(ranks)

    def halved_memory(self, rank: int, ranks: int) -> int:
        """Return the bytes of a rank, without `BASE_MEMORY`: ranks 0 and 1 shuffle."""
        own = (upper_memory(self.section, ranks), rest_memory(self.section))
        return step_memory(ranks) + (own[rank] if rank < len(own) else 0)

    @property
    def can_be_linked(self) -> bool:
        """Whether links between its steps fit their type."""
        return self.section.documents < NO_LINK and self.section.shuffled_samples < NO_LINK

    def linked_time(self, ranks: int) -> float:
        """Return the time in which all ranks build a section by links."""
        section = self.section
        drawn = DRAW_COST + LINK_COST / ranks
        shuffled = drawn * (section.documents + section.shuffled_samples)
        return shuffled + self._cut_time(ranks)

    def _cut_time(self, ranks: int) -> float:
        """Return the time in which all ranks cut and write the samples."""
        return (EMIT_COST * self.section.documents + _written(self.section)) / ranks

    def linked_memory(self, ranks: int) -> int:
        """Return the bytes of each rank's slice, without `BASE_MEMORY`."""
        largest = max(self.section.documents, self.section.shuffled_samples)
        return LINK_BYTES * largest // ranks + LINK_PIECES

    def memory(self, threads: int) -> int:
        """Return the bytes of memory, without `BASE_MEMORY`."""
        if self._copied:
            return 2 * CHUNK_BYTES
        workers = workers_of(self._splittable, threads)
        return max(_memory(member, workers) for member in self._members)

    def slices(self, ranks: int) -> int:
        """Return how many ranks can draw a blend, or pack a section; 0 for other sections."""
        first = self._members[0]
        if isinstance(first, BlendPlan):
            return min(ranks, -(-first.size // BLEND_SLICE))
        if first.packed is not None and self._is_large:
            return min(ranks, first.size.epochs * len(first.packed.groups))
        return 0

    @property
    def section(self) -> SectionPlan:
        """The section of a unit that can be split."""
        (section,) = self._members
        assert isinstance(section, SectionPlan)
        return section


def _written(item: Item) -> float:
    return WRITE_COST_PER_BYTE * sum(nbytes_of(*array) for array in item.arrays.values())


def _time(item: Item) -> float:
    if isinstance(item, BlendPlan):
        return BLEND_COST * item.size + _written(item)
    cost = SHUFFLE_COST if item.documents > SHUFFLE_SPACE_FROM else NEAR_SHUFFLE_COST
    shuffled = cost * (item.documents + item.shuffled_samples)
    cut = EMIT_COST if item.packed is None else PACK_COST
    return shuffled + cut * item.documents + _written(item)


def _memory(item: Item, workers: int) -> int:
    if isinstance(item, BlendPlan):
        return 2 * CHUNK_BYTES
    return ORDERS[item.order].memory(item, workers)
