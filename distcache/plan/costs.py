"""What building takes: time, of which only ratios matter, and memory, which `plan` predicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from distcache.plan.layout import STRIPE, Unit, nbytes_of
from distcache.plan.model import BlendPlan, SectionPlan
from distcache.plan.slices import lower_type, middle_of

__all__ = [
    "BASE_MEMORY",
    "BLEND_SLICE",
    "CHUNK_BYTES",
    "DOCUMENT_BYTES",
    "ENTRY_BYTES",
    "UnitCosts",
    "rest_memory",
    "shuffle_space",
    "step_memory",
    "stream_step",
    "upper_memory",
    "workers_of",
]

# Measured nanoseconds on one core of an AMD EPYC 9004; only their ratios matter.
SHUFFLE_COST: Final = 6.0
NEAR_SHUFFLE_COST: Final = 3.0  # of what the caches hold
EMIT_COST: Final = 4.0
BLEND_COST: Final = 30.0
WRITE_COST_PER_BYTE: Final = 0.6
SEND_COST_PER_BYTE: Final = 0.4
# What each rank takes to go through all draws, and for the links of a position of its own.
DRAW_COST: Final = 1.5
LINK_COST: Final = 240.0
LINK_BYTES: Final = 80
# What is sent at a time: numbers, their order, what arrives, and answers.
LINK_PIECES: Final = 160 << 20
NO_LINK: Final = 2**32 - 1
SECOND_WORKER: Final = 1.4  # how much faster two threads build one section than one

# The interpreter with NumPy, HDF5 and MPI, and the buffers of reading back.
BASE_MEMORY: Final = 160 << 20
# Arrays are written in chunks of this many bytes.
CHUNK_BYTES: Final = 8 << 20
# A document, and a document with its length while a document index is made.
DOCUMENT_BYTES: Final = 4
ENTRY_BYTES: Final = 8
# Steps of a blend: slices are multiples of it, so that those of both arrays start with a stripe.
BLEND_SLICE: Final = STRIPE // 2
# What the lists of a shuffle that is larger than the caches take for each of its values:
# `capacity_of` in cpp/src/partitioned_shuffle.hpp, and two bytes for a step of a block.
SHUFFLE_SPACE: Final = 2.2  # bytes
SHUFFLE_SPACE_FROM: Final = 1 << 21
# Entries on their way to all ranks at a time; each rank takes whole stripes of documents.
STREAM_STEP: Final = 1 << 21
LEAST_STEP: Final = STRIPE // DOCUMENT_BYTES

Item = SectionPlan | BlendPlan


def workers_of(splittable: bool, threads: int) -> int:
    """Return the threads that build one unit: a large section alone is worth two."""
    return 2 if splittable and threads > 1 else 1


def stream_step(ranks: int) -> int:
    """Return the entries that each rank takes at a time of a section that is split."""
    return max(STREAM_STEP // ranks // LEAST_STEP, 1) * LEAST_STEP


class UnitCosts:
    """What one unit takes when one rank builds it.

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
        self._copied = copied
        self.time = sum(_written(member) if copied else _time(member) for member in self._members)

    def time_with(self, threads: int) -> float:
        """Return the time with so many threads, of which one unit can use two."""
        two = workers_of(self._splittable, threads) > 1 and not self._copied
        return self.time / SECOND_WORKER if two else self.time

    @property
    def shuffle_time(self) -> float:
        """What the two ranks that shuffle a split section take at the same time."""
        return SHUFFLE_COST * self.section.documents / 2

    def cut_time(self, ranks: int) -> float:
        """Return what all ranks take to share out a split section, and to cut and write it."""
        section = self.section
        emitted = EMIT_COST * section.documents + _written(section)
        return SEND_COST_PER_BYTE * ENTRY_BYTES * section.documents + emitted / ranks

    @property
    def can_be_linked(self) -> bool:
        """Whether links between its steps fit their type."""
        return self.section.documents < NO_LINK and self.section.shuffled_samples < NO_LINK

    def linked_time(self, ranks: int) -> float:
        """Return what all ranks take to build a section of which each holds a slice."""
        section = self.section
        drawn = DRAW_COST + LINK_COST / ranks
        shuffled = drawn * (section.documents + section.shuffled_samples)
        return shuffled + (EMIT_COST * section.documents + _written(section)) / ranks

    def linked_memory(self, ranks: int) -> int:
        """Return the bytes that each rank takes for its slice, beside `BASE_MEMORY`."""
        largest = max(self.section.documents, self.section.shuffled_samples)
        return LINK_BYTES * largest // ranks + LINK_PIECES

    def memory(self, threads: int) -> int:
        """Return the bytes that it takes, beside `BASE_MEMORY`."""
        if self._copied:
            return 2 * CHUNK_BYTES
        workers = workers_of(self._splittable, threads)
        return max(_memory(member, workers) for member in self._members)

    def slices(self, ranks: int) -> int:
        """Return how many ranks can draw a blend at the same time; 0 for sections."""
        first = self._members[0]
        return min(ranks, -(-first.size // BLEND_SLICE)) if isinstance(first, BlendPlan) else 0

    @property
    def section(self) -> SectionPlan:
        """The section of a unit that can be split."""
        (section,) = self._members
        assert isinstance(section, SectionPlan)
        return section


def upper_memory(section: SectionPlan, ranks: int) -> int:
    """Return the bytes of the rank that shuffles the upper part of a split section."""
    middle = middle_of(section, workers=2)
    gathered = min(middle, ranks * stream_step(ranks))  # on their way to all ranks
    entries = ENTRY_BYTES * (section.first_documents + gathered)
    return entries + shuffle_space(section.first_documents) + _lower_memory(middle)


def rest_memory(section: SectionPlan) -> int:
    """Return the bytes of the rank that shuffles the rest of a split section."""
    last = ENTRY_BYTES * (section.documents - section.first_documents)
    lower = _lower_memory(middle_of(section, workers=2))
    largest = max(section.documents // 2, section.shuffled_samples)
    return lower + last + _shuffle_bytes(section) + shuffle_space(largest)


def step_memory(ranks: int) -> int:
    """Return the bytes with which every rank takes its slice of a split section."""
    return 2 * ENTRY_BYTES * stream_step(ranks) + 2 * CHUNK_BYTES


def shuffle_space(values: int) -> int:
    """Return the bytes that a shuffle takes beside its values."""
    return int(SHUFFLE_SPACE * values) if values > SHUFFLE_SPACE_FROM else 0


def _written(item: Item) -> float:
    return WRITE_COST_PER_BYTE * sum(nbytes_of(*array) for array in item.arrays.values())


def _time(item: Item) -> float:
    if isinstance(item, BlendPlan):
        return BLEND_COST * item.size + _written(item)
    cost = SHUFFLE_COST if item.documents > SHUFFLE_SPACE_FROM else NEAR_SHUFFLE_COST
    shuffled = cost * (item.documents + item.shuffled_samples)
    return shuffled + EMIT_COST * item.documents + _written(item)


def _memory(item: Item, workers: int) -> int:
    if isinstance(item, BlendPlan):
        return 2 * CHUNK_BYTES
    lower = _lower_memory(middle_of(item, workers))
    # Each worker has a generator of its own, with memory for the largest of its shuffles.
    space = workers * shuffle_space(max(item.documents, item.shuffled_samples))
    entries = ENTRY_BYTES * item.documents + space
    return entries + lower + _shuffle_bytes(item) + 4 * CHUNK_BYTES


def _lower_memory(middle: int) -> int:
    return lower_type(middle).itemsize * middle


def _shuffle_bytes(section: SectionPlan) -> int:
    return nbytes_of(*section.arrays["shuffle_index"])
