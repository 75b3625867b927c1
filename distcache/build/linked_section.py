"""A large section of which no rank holds more than its slice: all ranks shuffle it together.

Each rank gets its slice of the document index from `shuffled_slice`, knows from the sums of the
lengths before it where its tokens start, and cuts and writes the samples that fall into them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distcache.build.data_file import ArrayWriter, DataFile
from distcache.build.entries import documents_of, tokens_of
from distcache.build.row_slice import RowSlice
from distcache.build.shared_shuffle import shuffled_slice
from distcache.cache.digests import joined_digest
from distcache.corpus import Corpus
from distcache.kernels import Mt19937, entries_at
from distcache.plan.costs import CHUNK_BYTES, DOCUMENT_BYTES, ENTRY_BYTES
from distcache.plan.layout import STRIPE, ArrayPlace
from distcache.plan.model import SectionPlan
from distcache.plan.slices import row_bounds
from distcache.ranks.agreement import together
from distcache.ranks.balance import slice_bounds
from distcache.ranks.communicator import Communicator

__all__ = ["LinkedSection"]

CHUNK = CHUNK_BYTES // ENTRY_BYTES


class LinkedSection:
    """One section, built by `build`.

    Parameters
    ----------
    communicator : Communicator
        Of all ranks.
    section : SectionPlan
        What to build; each of its parts that are shuffled apart has less than 2^32 - 1 entries.
    corpus : Corpus
        To build from.
    places : dict of str to ArrayPlace
        Where to write each array.
    file : DataFile
        The unfinished cache.
    """

    def __init__(
        self,
        communicator: Communicator,
        section: SectionPlan,
        corpus: Corpus,
        places: dict[str, ArrayPlace],
        file: DataFile,
    ) -> None:
        self._communicator = communicator
        self._section = section
        self._corpus = corpus
        self._places = places
        self._file = file
        self._generator = Mt19937(section.seed)

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
        entries = together(communicator, partial(self._entries, positions), "looking up lengths")
        del positions
        documents, rows = self._cut(entries, bounds)
        del entries
        samples = self._write_samples()
        writers: dict[str, ArrayWriter | RowSlice] = {
            "document_index": documents,
            "sample_index": rows,
            "shuffle_index": samples,
        }

        def write_rest() -> dict[str, bytes]:
            rows.write_tail()
            return {name: writer.leaves().tobytes() for name, writer in writers.items()}

        mine = together(communicator, write_rest, "writing a section")
        shares = communicator.gather_all(mine, dict[str, bytes], "digests of slices")
        return {name: joined_digest(share[name] for share in shares) for name in writers}

    def _shuffle(self, first: int, size: int, bounds: Sequence[int]) -> list[NDArray[np.uint32]]:
        """Return this rank's slices of [0, first) and [first, size), shuffled apart. Collective."""
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

    def _cut(
        self, entries: NDArray[np.int64], bounds: Sequence[int]
    ) -> tuple[ArrayWriter, RowSlice]:
        """Write this rank's documents and samples. Collective."""
        communicator, section, rank = self._communicator, self._section, self._communicator.rank
        tokens = communicator.gather_all(tokens_of(entries), int, "sums of lengths")
        firsts = [sum(tokens[:before]) for before in range(communicator.size)]
        documents = ArrayWriter(
            self._file, self._places["document_index"], DOCUMENT_BYTES * bounds[rank]
        )
        rows = RowSlice(
            communicator,
            section,
            row_bounds(firsts, section),
            (bounds[rank], firsts[rank]),
            self._file,
            self._places["sample_index"],
        )

        def take() -> None:
            for begin in range(0, len(entries), CHUNK):
                chunk = entries[begin : begin + CHUNK]
                documents.append(documents_of(chunk))
                rows.feed(chunk, bounds[rank] + begin)
            rows.finish()

        together(communicator, take, "cutting samples")
        rows.settle()
        return documents, rows

    def _write_samples(self) -> ArrayWriter:
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

        together(self._communicator, write, "writing samples")
        return writer
