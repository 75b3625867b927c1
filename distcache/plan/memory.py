"""The bytes of memory that building a section takes, and by which its builders stay within them."""

from __future__ import annotations

from typing import Final

import numpy as np

from distcache.plan.model import NARROW, SectionPlan, nbytes_of

# The interpreter with NumPy, HDF5 and MPI, and the buffers of reading back.
BASE_MEMORY: Final = 160 << 20
# Arrays are written in chunks of this many bytes.
CHUNK_BYTES: Final = 8 << 20
# An entry of a document index; and the length of a sequence, for look-ups.
DOCUMENT_BYTES: Final = 4
LENGTH_BYTES: Final = 2
CHUNK_DOCUMENTS: Final = CHUNK_BYTES // DOCUMENT_BYTES
# Smaller memory of documents comes from the allocator, which reuses it for the next section.
MAPPED_FROM: Final = 32 << 20  # bytes
# A document of a group: with its length, sorted by it, in its row, and the rows before its tail.
PACKED_BYTES: Final = 20
COUNTED_BYTES: Final = 64  # for each length: counts, rows that wait, and places
PASS_BYTES: Final = 14  # for each sequence of a pass: its parts, all of it, a copy, its length
# Bytes per value of the lists of a shuffle that is larger than the caches, by the bytes of a value:
# `capacity_of` in cpp/distcache/partitioned_shuffle.hpp, and two bytes for a step of a block. They
# suffice for cores with a small second cache, whose regions have half the size.
SHUFFLE_SPACE: Final = {4: 1.6, 8: 2.35}
SHUFFLE_SPACE_FROM: Final = 1 << 22


def pivot_of(section: SectionPlan, workers: int) -> int:
    """Return the position below which the second of two workers shuffles; 0 if there is one.

    The second also shuffles the last pass and the samples, so that both have as many steps.
    """
    if workers < 2:
        return 0
    steps = section.documents + section.shuffled_samples
    return max(section.first_documents - steps // 2, 0)


def lower_type(pivot: int) -> np.dtype[np.int32] | np.dtype[np.int64]:
    """Return the dtype of positions below a pivot."""
    return np.dtype(np.int32) if pivot <= NARROW else np.dtype(np.int64)


def shuffle_space(values: int, itemsize: int = DOCUMENT_BYTES) -> int:
    """Return the bytes that a shuffle needs beside its values."""
    return int(SHUFFLE_SPACE[itemsize] * values) if values > SHUFFLE_SPACE_FROM else 0


def memory_of_megatron(section: SectionPlan, workers: int) -> int:
    """Return the bytes of a rank that builds a section in Megatron's order (`builder.sections`)."""
    first, last = section.first_documents, section.documents - section.first_documents
    samples = _samples_space(section)
    lengths = LENGTH_BYTES * (section.end - section.begin)
    if workers < 2:  # passes before the last one are written before that is shuffled, and so on
        sizes = (DOCUMENT_BYTES * first, DOCUMENT_BYTES * last)
        held = max(*sizes, _shuffle_bytes(section))
        held += sum(size for size in sizes if size < MAPPED_FROM)  # which is not released
        space = max(shuffle_space(max(first, last)), samples)
        return held + space + lengths + 4 * CHUNK_BYTES
    pivot = pivot_of(section, workers)
    position = lower_type(pivot).itemsize
    # Each worker has a generator, with memory for the largest of its shuffles; lengths come later.
    others = max(shuffle_space(pivot, position), shuffle_space(last), samples)
    shuffling = shuffle_space(first) + others + _shuffle_bytes(section)
    documents = DOCUMENT_BYTES * section.documents + position * pivot
    return documents + max(shuffling, lengths) + 4 * CHUNK_BYTES


def memory_of_passes(section: SectionPlan, _workers: int) -> int:
    """Return the bytes of a rank that builds a section of whole passes (`builder.passes`)."""
    documents = 0 if section.rows else DOCUMENT_BYTES * section.documents
    one_pass = PASS_BYTES * (section.end - section.begin)
    space = max(shuffle_space(section.end - section.begin), _samples_space(section))
    return documents + one_pass + space + _shuffle_bytes(section) + 4 * CHUNK_BYTES


def memory_of_packed(section: SectionPlan, _workers: int) -> int:
    """Return the bytes of a rank that packs groups of a section (`builder.packed`)."""
    assert section.packed is not None, "its order is packed"
    group = max((group.end - group.begin for group in section.packed.groups), default=0)
    rows = max((group.rows for group in section.packed.groups), default=0)
    starts = 2 * np.dtype(section.sample_type).itemsize * rows
    sample = np.dtype(section.shuffle_type).itemsize
    shuffled = sample * section.packed.rows
    space = max(shuffle_space(group, 8), shuffle_space(section.packed.rows, sample))
    one_group = PACKED_BYTES * group + starts
    counts = COUNTED_BYTES * section.packed.rules.row_length
    return max(one_group, shuffled) + space + counts + 4 * CHUNK_BYTES


def _samples_space(section: SectionPlan) -> int:
    return shuffle_space(section.shuffled_samples, np.dtype(section.shuffle_type).itemsize)


def _shuffle_bytes(section: SectionPlan) -> int:
    return 0 if section.rows else nbytes_of(*section.arrays["shuffle_index"])
