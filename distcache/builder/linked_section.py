"""A large section of which no rank holds more than its slice: all ranks shuffle it together.

Each rank gets its slice of the document index from `shuffled_slice`, knows from the prefix sums
of the lengths where its tokens start, and cuts and writes the samples that begin in them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distcache.builder.arrays import ArrayWriter
from distcache.builder.entries import tokens_of
from distcache.builder.job import Job
from distcache.builder.section_slice import SectionSlice, joined_digests
from distcache.builder.shared_shuffle import shuffled_slice
from distcache.kernels import Mt19937, entries_at
from distcache.plan.memory import CHUNK_BYTES, DOCUMENT_BYTES, ENTRY_BYTES
from distcache.plan.model import STRIPE
from distcache.ranks.agreement import on_all_ranks
from distcache.ranks.partition import slice_bounds
from distcache.storage.unfinished_file import UnfinishedFile

CHUNK = CHUNK_BYTES // ENTRY_BYTES


class LinkedSection:
    """One section, built by `build`.

    Parameters
    ----------
    job : Job
        The build.
    item : int
        Index of the section into `Plan.items`; each part that is shuffled separately has
        less than 2^32 - 1 entries.
    file : UnfinishedFile
        The unfinished cache.
    """

    def __init__(self, job: Job, item: int, file: UnfinishedFile) -> None:
        self._communicator = job.communicator
        self._section = job.plan.sections[item]
        self._corpus = job.corpus(self._section)
        self._places = job.places(item)
        self._file = file
        self._generator = Mt19937(self._section.seed)

    def build(self) -> dict[str, str]:
        """Shuffle, cut and write the section. Collective.

        Returns
        -------
        dict of str to str
            The digest of each array, on all ranks.
        """
        section, communicator = self._section, self._communicator
        bounds = slice_bounds(section.documents, communicator.size, STRIPE // DOCUMENT_BYTES)
        positions = self._shuffle(section.first_documents, section.documents, bounds)
        entries = on_all_ranks(
            communicator, partial(self._entries, positions), "looking up lengths"
        )
        del positions
        leaves = self._cut(entries, bounds)
        del entries
        return joined_digests(communicator, leaves | self._write_samples())

    def _shuffle(self, first: int, size: int, bounds: Sequence[int]) -> list[NDArray[np.uint32]]:
        """Return this rank's slices of [0, first) and [first, size), both shuffled. Collective."""
        return [
            shuffled_slice(
                self._communicator,
                end - begin,
                self._generator,
                [min(max(bound, begin), end) - begin for bound in bounds],
            )
            for begin, end in ((0, first), (first, size))
        ]

    def _entries(self, positions: Sequence[NDArray[np.uint32]]) -> NDArray[np.int64]:
        """Return the entries of this rank's slice of the document index."""
        section, idx = self._section, self._corpus.idx
        entries = np.empty(sum(map(len, positions)), np.int64)
        done = 0
        for part in positions:
            out = entries[done : done + len(part)]
            entries_at(idx.lengths, section.begin, section.end - section.begin, part, out)
            done += len(part)
        idx.require_intact()
        return entries

    def _cut(self, entries: NDArray[np.int64], bounds: Sequence[int]) -> dict[str, bytes]:
        """Write this rank's documents and samples. Collective."""
        communicator, first = self._communicator, bounds[self._communicator.rank]
        tokens = communicator.allgather(tokens_of(entries), int, "sums of lengths")
        firsts = [0, *itertools.accumulate(tokens[:-1])]
        part = SectionSlice(communicator, self._section, self._places, self._file, bounds, firsts)

        def feed() -> None:
            for begin in range(0, len(entries), CHUNK):
                part.feed(first + begin, entries[begin : begin + CHUNK])

        on_all_ranks(communicator, feed, "writing documents")
        return part.finish()

    def _write_samples(self) -> dict[str, bytes]:
        """Shuffle and write this rank's slice of the shuffle index. Collective."""
        section, rank = self._section, self._communicator.rank
        dtype: np.dtype[Any] = np.dtype(section.shuffle_type)
        size, first = section.shuffled_samples, section.first_samples
        bounds = slice_bounds(size, self._communicator.size, STRIPE // dtype.itemsize)
        before, behind = self._shuffle(first, size, bounds)
        place = self._places["shuffle_index"]
        writer = ArrayWriter(self._file, place, dtype.itemsize * bounds[rank])

        def write() -> None:
            values = np.empty(len(before) + len(behind), dtype)
            values[: len(before)] = before
            np.add(behind, first, out=values[len(before) :], dtype=dtype, casting="unsafe")
            writer.append(values)

        on_all_ranks(self._communicator, write, "writing samples")
        return {"shuffle_index": writer.leaves().tobytes()}
