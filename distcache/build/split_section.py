"""A large section, built by all ranks together.

One rank shuffles the upper part of the documents, while another goes ahead in the generator's
stream and shuffles the rest. Then the document index streams from these two to all: every rank
takes a slice, knows from the sums of the lengths before it where its tokens start, and cuts and
writes the samples that fall into them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distcache.build.data_file import ArrayWriter, DataFile, write_in_chunks
from distcache.build.entries import (
    Entries,
    EntryMemory,
    documents_of,
    fill_epochs,
    shuffle_last,
    shuffle_lower,
    shuffle_samples,
    shuffle_upper,
    skip_upper,
)
from distcache.build.row_slice import RowSlice
from distcache.build.stream import EntryStream
from distcache.cache.digests import joined_digest
from distcache.corpus import Corpus
from distcache.kernels import Mt19937
from distcache.plan.assignment import SplitUnit
from distcache.plan.costs import DOCUMENT_BYTES, stream_step
from distcache.plan.layout import STRIPE, ArrayPlace
from distcache.plan.model import SectionPlan
from distcache.plan.slices import lower_type, middle_of, row_bounds
from distcache.ranks.agreement import together
from distcache.ranks.balance import slice_bounds
from distcache.ranks.communicator import Communicator, Message

__all__ = ["SplitSection"]


class SplitSection:
    """The steps of building one section with all ranks: `shuffle`, then `cut`.

    Parameters
    ----------
    communicator : Communicator
        Of all ranks.
    roles : SplitUnit
        Which of them shuffle.
    section : SectionPlan
        What to build.
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
        roles: SplitUnit,
        section: SectionPlan,
        corpus: Corpus,
        places: dict[str, ArrayPlace],
        file: DataFile,
    ) -> None:
        self._communicator = communicator
        self._roles = roles
        self._section = section
        self._corpus = corpus
        self._places = places
        self._file = file
        self._middle = middle_of(section, workers=2)
        self._held: dict[int, Entries] = {}
        self._upper = EntryMemory(0)
        self._lower: NDArray[Any] = np.empty(0, lower_type(self._middle))
        self._shuffle_digest = ""

    def shuffle(self) -> None:
        """Do this rank's share of the shuffles; for most ranks that is nothing."""
        section, rank = self._section, self._communicator.rank
        if rank == self._roles.upper_rank:
            self._upper = EntryMemory(section.first_documents)
            fill_epochs(section, self._corpus.idx, self._upper.values, 0)
            self._corpus.idx.require_intact()
            shuffle_upper(self._middle, self._upper.values, Mt19937(section.seed))
        elif rank == self._roles.rest_rank:
            generator = skip_upper(section, self._middle)
            self._lower = shuffle_lower(self._middle, generator)
            last = shuffle_last(section, self._corpus.idx, generator)
            self._corpus.idx.require_intact()
            self._held[1] = Entries(section.first_documents, last)
            samples = shuffle_samples(section, generator)
            place = self._places["shuffle_index"]
            self._shuffle_digest = write_in_chunks(self._file, place, samples)

    def cut(self) -> dict[str, str]:
        """Share out the document index, and write it and the sample index. Collective.

        Returns
        -------
        dict of str to str
            The digest of each array, on all ranks.
        """
        communicator, section, rank = self._communicator, self._section, self._communicator.rank
        self._bring_lower()
        bounds = slice_bounds(section.documents, communicator.size, STRIPE // DOCUMENT_BYTES)
        stream = EntryStream(
            communicator, self._holders(), self._held, bounds, stream_step(communicator.size)
        )
        firsts = stream.first_tokens(section.size.epochs * section.tokens)
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

        def take(begin: int, entries: NDArray[np.int64]) -> None:
            documents.append(documents_of(entries))
            rows.feed(entries, begin)

        for begin, entries in stream:
            together(communicator, partial(take, begin, entries), "writing documents")
        self._held = {}
        together(communicator, rows.finish, "cutting samples")
        rows.settle()
        return self._digests(documents, rows)

    def _bring_lower(self) -> None:
        """Bring the lower positions to the rank that has the upper part. Collective."""
        sends, receives = [], []
        if self._communicator.rank == self._roles.rest_rank:
            sends.append(Message(self._roles.upper_rank, self._lower))
        elif self._communicator.rank == self._roles.upper_rank:
            self._lower = np.empty(self._middle, lower_type(self._middle))
            receives.append(Message(self._roles.rest_rank, self._lower))
        self._communicator.exchange(sends, receives, "positions of a document index")
        if self._communicator.rank == self._roles.upper_rank:
            self._held[0] = Entries(0, self._upper, self._lower)
        del self._upper, self._lower

    def _holders(self) -> list[tuple[int, int, int]]:
        first = self._section.first_documents
        return [
            (self._roles.upper_rank, 0, first),
            (self._roles.rest_rank, first, self._section.documents),
        ]

    def _digests(self, documents: ArrayWriter, rows: RowSlice) -> dict[str, str]:
        """Put the digests of all ranks together. Collective."""

        def mine() -> tuple[bytes, bytes, str]:
            rows.write_tail()
            leaves = documents.leaves().tobytes(), rows.leaves().tobytes()
            return *leaves, self._shuffle_digest

        own = together(self._communicator, mine, "writing samples")
        shares = self._communicator.gather_all(own, tuple[bytes, bytes, str], "digests of slices")
        return {
            "document_index": joined_digest(leaves for leaves, _, _ in shares),
            "sample_index": joined_digest(leaves for _, leaves, _ in shares),
            "shuffle_index": shares[self._roles.rest_rank][2],
        }
