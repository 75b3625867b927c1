"""The cost model: relative time and absolute memory of every unit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from distcache.plan.layout import BLEND_SLICE, STRIPE, Unit, nbytes_of
from distcache.plan.model import NARROW, BlendPlan, SectionPlan

# Measured nanoseconds on one core of an AMD EPYC 9004; only their ratios matter.
SHUFFLE_COST: Final = 6.0
NEAR_SHUFFLE_COST: Final = 3.0  # of values that fit into the caches
EMIT_COST: Final = 4.0
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

# The interpreter with NumPy, HDF5 and MPI, and the buffers of reading back.
BASE_MEMORY: Final = 160 << 20
# Arrays are written in chunks of this many bytes.
CHUNK_BYTES: Final = 8 << 20
# A document; and a document with its length, during a build.
DOCUMENT_BYTES: Final = 4
ENTRY_BYTES: Final = 8
PASS_BYTES: Final = 12  # for each sequence of a pass: its parts, all of it, and what is written
# Bytes per value of the lists of a shuffle that is larger than the caches:
# `capacity_of` in cpp/src/partitioned_shuffle.hpp, and two bytes for a step of a block.
SHUFFLE_SPACE: Final = 2.2  # bytes
SHUFFLE_SPACE_FROM: Final = 1 << 21
# Entries in transit to all ranks at a time; each rank takes whole stripes of documents.
STREAM_STEP: Final = 1 << 21
LEAST_STEP: Final = STRIPE // DOCUMENT_BYTES

Item = SectionPlan | BlendPlan


def workers_of(splittable: bool, threads: int) -> int:
    """Return the threads that build one unit: two for a large section."""
    return 2 if splittable and threads > 1 else 1


def stream_step(ranks: int) -> int:
    """Return the entries of a split section that each rank takes at a time."""
    return max(STREAM_STEP // ranks // LEAST_STEP, 1) * LEAST_STEP


def pivot_of(section: SectionPlan, workers: int) -> int:
    """Return the position below which the second of two workers shuffles; 0 if there is one.

    The second also shuffles the last epoch and the samples, so that both have as many steps.
    """
    if workers < 2:
        return 0
    steps = section.documents + section.shuffled_samples
    return max(section.first_documents - steps // 2, 0)


def lower_type(pivot: int) -> np.dtype[np.int32] | np.dtype[np.int64]:
    """Return the dtype of positions below a pivot."""
    return np.dtype(np.int32) if pivot <= NARROW else np.dtype(np.int64)


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
        self._copied = copied
        self.time = sum(_written(member) if copied else _time(member) for member in self._members)

    def time_with(self, threads: int) -> float:
        """Return the time with some threads; one unit can use two."""
        two = workers_of(self._splittable, threads) > 1 and not self._copied
        return self.time / SECOND_WORKER if two else self.time

    @property
    def shuffle_time(self) -> float:
        """The time of the two ranks that shuffle a split section."""
        return SHUFFLE_COST * self.section.documents / 2

    def cut_time(self, ranks: int) -> float:
        """Return the time in which all ranks distribute, cut and write a split section."""
        section = self.section
        emitted = EMIT_COST * section.documents + _written(section)
        return SEND_COST_PER_BYTE * ENTRY_BYTES * section.documents + emitted / ranks

    @property
    def can_be_linked(self) -> bool:
        """Whether links between its steps fit their type."""
        return self.section.documents < NO_LINK and self.section.shuffled_samples < NO_LINK

    def linked_time(self, ranks: int) -> float:
        """Return the time in which all ranks build a section by links."""
        section = self.section
        drawn = DRAW_COST + LINK_COST / ranks
        shuffled = drawn * (section.documents + section.shuffled_samples)
        return shuffled + (EMIT_COST * section.documents + _written(section)) / ranks

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
    pivot = pivot_of(section, workers=2)
    gathered = min(pivot, ranks * stream_step(ranks))  # in transit to all ranks
    entries = ENTRY_BYTES * (section.first_documents + gathered)
    return entries + shuffle_space(section.first_documents) + _lower_memory(pivot)


def rest_memory(section: SectionPlan) -> int:
    """Return the bytes of the rank that shuffles the rest of a split section."""
    last = ENTRY_BYTES * (section.documents - section.first_documents)
    lower = _lower_memory(pivot_of(section, workers=2))
    largest = max(section.documents // 2, section.shuffled_samples)
    return lower + last + _shuffle_bytes(section) + shuffle_space(largest)


def step_memory(ranks: int) -> int:
    """Return the bytes that every rank needs for its slice of a split section."""
    return 2 * ENTRY_BYTES * stream_step(ranks) + 2 * CHUNK_BYTES


def shuffle_space(values: int) -> int:
    """Return the bytes that a shuffle needs besides its values."""
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
    if item.order != "megatron":
        return _memory_of_passes(item)
    lower = _lower_memory(pivot_of(item, workers))
    # Each worker has a generator, with memory for the largest of its shuffles.
    space = workers * shuffle_space(max(item.documents, item.shuffled_samples))
    entries = ENTRY_BYTES * item.documents + space
    return entries + lower + _shuffle_bytes(item) + 4 * CHUNK_BYTES


def _memory_of_passes(section: SectionPlan) -> int:
    """Return the bytes of the rank that builds a section of whole passes (`builder.passes`)."""
    entries = 0 if section.rows else ENTRY_BYTES * section.documents
    one_pass = PASS_BYTES * (section.end - section.begin)
    space = shuffle_space(max(section.end - section.begin, section.shuffled_samples))
    return entries + one_pass + space + _shuffle_bytes(section) + 4 * CHUNK_BYTES


def _lower_memory(pivot: int) -> int:
    return lower_type(pivot).itemsize * pivot


def _shuffle_bytes(section: SectionPlan) -> int:
    return 0 if section.rows else nbytes_of(*section.arrays["shuffle_index"])
