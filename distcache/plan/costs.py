"""The cost model: the time of every unit, and the memory that it takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from distcache.plan.layout import BLEND_SLICE, UNIT_FULL, Unit
from distcache.plan.memory import (
    CHUNK_BYTES,
    SHUFFLE_SPACE_FROM,
)
from distcache.plan.model import BlendPlan, SectionPlan, nbytes_of
from distcache.plan.orders import ORDERS

# For each rank: to go through all draws, and for the links of each of its positions; relative to
# a value that is shuffled.
DRAW_SHARE: Final = 0.25
LINK_SHARE: Final = 40.0
SHUFFLE_PART: Final = 0.5  # of the time of a document of a small section
PACK_SHARE: Final = 2.5  # of a document that is packed, relative to one of a small section
BLEND_CORPORA: Final = 512  # corpora of the blend that was measured
BLEND_GROWTH: Final = 0.25  # power of the number of corpora by which a step takes longer
LINK_BYTES: Final = 80  # without the lengths, mapped pages of an `.idx` that ranks share
# Of small sections that are built together: arrays of those beside the largest, and lengths.
RUN_MEMORY: Final = 2 * UNIT_FULL
# Buffers of an exchange: numbers, their order, what arrives, and answers.
LINK_PIECES: Final = 160 << 20
NO_LINK: Final = 2**32 - 1
WORKER_STEPS: Final = 2 * BLEND_SLICE  # fewest steps that one more thread draws
SECOND_WORKER: Final = 1.4  # speed of two threads on one section, relative to one


# Nanoseconds, while all of a machine's streams work, on one core of an AMD EPYC, at c490538, when
# documents were shuffled with their lengths: a look-up now takes what a shuffle takes less. Ranks
# distribute their work by them, wherever they are, so that all make the same assignment.
SHUFFLED: Final = 6.0  # for a value of a shuffle that is larger than the caches
SMALL: Final = 3.5  # for a document of a section within the caches; half of it is its shuffle
BLENDED: Final = 19.0  # for a step of a blend of `BLEND_CORPORA`
WRITTEN: Final = 0.25  # for a byte that is written and digested
SYNCED: Final = 0.5  # for a byte that is brought to the disk
READ: Final = 0.055  # for a byte that is read from the page cache and digested
TOUCHED: Final = 1.0  # for the first use of a byte of memory
Item = SectionPlan | BlendPlan


def workers_of(splittable: bool, threads: int) -> int:
    """Return the threads that build one section: two for a large one."""
    return 2 if splittable and threads > 1 else 1


def blend_workers(steps: int, threads: int) -> int:
    """Return the threads that draw steps of a blend."""
    return max(min(threads, steps // WORKER_STEPS), 1)


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
        time_of = self._written if copied else self._time
        self.time = sum(map(time_of, self._members))

    def time_with(self, threads: int, ranks: int = 1) -> float:
        """Return the time with some threads: a section can use two, a blend `blend_workers`.

        If several ranks draw or pack the unit, this is the time of each rank.
        """
        first = self._members[0]
        if self._copied:
            return self.time
        if isinstance(first, BlendPlan):
            share = -(-first.size // ranks)
            return self.time / max(self.slices(ranks), 1) / blend_workers(share, threads)
        if ranks > 1:
            return self.time / self.slices(ranks)
        return self.time / (SECOND_WORKER if workers_of(self._splittable, threads) > 1 else 1)

    @property
    def can_be_linked(self) -> bool:
        """Whether links between its steps fit their type."""
        return self.section.documents < NO_LINK and self.section.shuffled_samples < NO_LINK

    def linked_time(self, ranks: int) -> float:
        """Return the time in which all ranks build a section by links."""
        section = self.section
        drawn = SHUFFLED * (DRAW_SHARE + LINK_SHARE / ranks)
        shuffled = drawn * (section.documents + section.shuffled_samples)
        return shuffled + (self._cut(section) + self._written(section)) / ranks

    def linked_memory(self, ranks: int) -> int:
        """Return the bytes of each rank's slice, without `BASE_MEMORY`."""
        largest = max(self.section.documents, self.section.shuffled_samples)
        return LINK_BYTES * largest // ranks + LINK_PIECES

    def memory(self, threads: int, ranks: int = 1) -> int:
        """Return the bytes of memory of each of several ranks, without `BASE_MEMORY`."""
        first = self._members[0]
        if self._copied:
            return 2 * CHUNK_BYTES
        if isinstance(first, BlendPlan) and self._is_large:
            return 2 * CHUNK_BYTES * blend_workers(-(-first.size // ranks), threads)
        most = max(_memory(member, self._splittable, threads) for member in self._members)
        return most if self._is_large else most + RUN_MEMORY

    def slices(self, ranks: int) -> int:
        """Return how many ranks can draw a blend, or pack a section; 0 for other sections."""
        first = self._members[0]
        if isinstance(first, BlendPlan):
            return min(ranks, -(-first.size // BLEND_SLICE))
        if first.packed is not None and self._is_large:
            return min(ranks, first.size.passes * len(first.packed.groups))
        return 0

    @property
    def section(self) -> SectionPlan:
        """The section of a unit that can be split."""
        (section,) = self._members
        assert isinstance(section, SectionPlan)
        return section

    def _time(self, item: Item) -> float:
        if isinstance(item, BlendPlan):
            corpora = max(len(item.weights or item.sizes), 1)
            step = BLENDED * math.pow(corpora / BLEND_CORPORA, BLEND_GROWTH)
            return step * item.size + self._written(item)
        is_far = item.documents > SHUFFLE_SPACE_FROM
        shuffled = SHUFFLED if is_far else SHUFFLE_PART * SMALL
        steps = item.documents + item.shuffled_samples
        return shuffled * steps + self._cut(item) + self._written(item)

    def _cut(self, section: SectionPlan) -> float:
        share = 1 - SHUFFLE_PART if section.packed is None else PACK_SHARE
        return share * SMALL * section.documents

    def _written(self, item: Item) -> float:
        return WRITTEN * sum(nbytes_of(*array) for array in item.arrays.values())


def _memory(item: Item, splittable: bool, threads: int) -> int:
    if isinstance(item, BlendPlan):
        return 2 * CHUNK_BYTES * blend_workers(item.size, threads)
    return ORDERS[item.order].memory(item, workers_of(splittable, threads))
