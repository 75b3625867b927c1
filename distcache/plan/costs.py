"""The cost model: the time of every unit, and the memory that it takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from distcache.plan.layout import BLEND_SLICE, UNIT_FULL, Unit
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

# For each rank: to go through all draws, and for the links of each of its positions; relative to
# a value that is shuffled.
DRAW_SHARE: Final = 0.25
LINK_SHARE: Final = 40.0
SEND_SHARE: Final = 1.6  # of a byte that is sent, relative to one that is written
SHUFFLE_PART: Final = 0.5  # of the time of a document of a small section
PACK_SHARE: Final = 2.5  # of a document that is packed, relative to one of a small section
BLEND_CORPORA: Final = 512  # corpora of the blend in `Costs`
BLEND_GROWTH: Final = 0.25  # power of the number of corpora by which a step takes longer
LINK_BYTES: Final = 80
# Of small sections that are built together: arrays of those beside the largest, and lengths.
RUN_MEMORY: Final = 2 * UNIT_FULL
# Buffers of an exchange: numbers, their order, what arrives, and answers.
LINK_PIECES: Final = 160 << 20
NO_LINK: Final = 2**32 - 1
SECOND_WORKER: Final = 1.4  # speed of two threads on one section, relative to one


class Costs(msgspec.Struct, frozen=True):
    """The time that a machine takes for the parts of a build, while all of its streams work.

    The defaults were measured on one core of an AMD EPYC. Ranks distribute their work by them,
    wherever they are, so that all make the same assignment; an estimate may have others.

    Attributes
    ----------
    shuffled : float
        Nanoseconds per value of a shuffle that is larger than the caches.
    small : float
        Nanoseconds per document of a section within the caches; half of them are its shuffle.
    blended : float
        Nanoseconds per step of a blend of `BLEND_CORPORA`.
    written, synced, read : float
        Nanoseconds per byte for writing and digesting it, for bringing it to the disk, and for
        reading it from the page cache and digesting it.
    touched : float
        Nanoseconds per byte of memory for its first use.
    interpreted : float
        Time of Python code, relative to that machine.
    """

    shuffled: float = 6.0
    small: float = 3.5
    blended: float = 19.0
    written: float = 0.25
    synced: float = 0.5
    read: float = 0.055
    touched: float = 1.0
    interpreted: float = 1.0


REFERENCE: Final = Costs()
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
    costs : Costs
        Costs of the machine.
    """

    def __init__(self, unit: Unit, items: Sequence[Item], *, copied: bool, costs: Costs) -> None:
        self._costs = costs
        self._members = [items[index] for index in unit.items]
        self._splittable = unit.splittable
        self._is_large = unit.is_large
        self._copied = copied
        time_of = self._written if copied else self._time
        self.time = sum(map(time_of, self._members))

    def time_with(self, threads: int) -> float:
        """Return the time with some threads; one unit can use two."""
        two = workers_of(self._splittable, threads) > 1 and not self._copied
        return self.time / SECOND_WORKER if two else self.time

    def halved_time(self, ranks: int) -> float:
        """Return the time of a section that two ranks shuffle, and all cut and write."""
        section = self.section
        shuffled = self._costs.shuffled * section.documents / 2
        sent = SEND_SHARE * self._costs.written * ENTRY_BYTES * section.documents
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
        drawn = self._costs.shuffled * (DRAW_SHARE + LINK_SHARE / ranks)
        shuffled = drawn * (section.documents + section.shuffled_samples)
        return shuffled + self._cut_time(ranks)

    def _cut_time(self, ranks: int) -> float:
        """Return the time in which all ranks cut and write the samples."""
        return (self._cut(self.section) + self._written(self.section)) / ranks

    def linked_memory(self, ranks: int) -> int:
        """Return the bytes of each rank's slice, without `BASE_MEMORY`."""
        largest = max(self.section.documents, self.section.shuffled_samples)
        return LINK_BYTES * largest // ranks + LINK_PIECES

    def memory(self, threads: int) -> int:
        """Return the bytes of memory, without `BASE_MEMORY`."""
        if self._copied:
            return 2 * CHUNK_BYTES
        workers = workers_of(self._splittable, threads)
        most = max(_memory(member, workers) for member in self._members)
        return most if self._is_large else most + RUN_MEMORY

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

    def _time(self, item: Item) -> float:
        if isinstance(item, BlendPlan):
            corpora = max(len(item.weights or item.sizes), 1)
            step = self._costs.blended * math.pow(corpora / BLEND_CORPORA, BLEND_GROWTH)
            return step * item.size + self._written(item)
        is_far = item.documents > SHUFFLE_SPACE_FROM
        shuffled = self._costs.shuffled if is_far else SHUFFLE_PART * self._costs.small
        steps = item.documents + item.shuffled_samples
        return shuffled * steps + self._cut(item) + self._written(item)

    def _cut(self, section: SectionPlan) -> float:
        share = 1 - SHUFFLE_PART if section.packed is None else PACK_SHARE
        return share * self._costs.small * section.documents

    def _written(self, item: Item) -> float:
        return self._costs.written * sum(nbytes_of(*array) for array in item.arrays.values())


def _memory(item: Item, workers: int) -> int:
    if isinstance(item, BlendPlan):
        return 2 * CHUNK_BYTES
    return ORDERS[item.order].memory(item, workers)
