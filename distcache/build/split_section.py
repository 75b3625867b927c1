"""A large section, built by all ranks together.

One rank shuffles the documents while another goes ahead in the generator's stream and shuffles
the rest. Then every rank takes a slice of the document index, sums its lengths, learns from the
sums before it where its tokens start, and emits and writes the boundaries that fall into them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from distcache.build.agreement import together
from distcache.build.communicator import Communicator, Message
from distcache.build.data_file import ArrayWriter, DataFile
from distcache.build.sections import (
    RowEmitter,
    documents_of,
    fill_epochs,
    shuffle_index,
    tokens_of,
)
from distcache.cache.digests import array_digest, leaves_of
from distcache.corpus import Corpus
from distcache.kernels import Mt19937
from distcache.plan.assignment import SplitUnit
from distcache.plan.balance import slice_bounds
from distcache.plan.layout import STRIPE, ArrayPlace
from distcache.plan.model import SectionPlan
from distcache.plan.slices import edges, overlaps, row_bounds

__all__ = ["SplitSection"]

NOTHING: Final = np.empty(0, np.int64)
SLICE_STEP: Final = STRIPE // 4  # documents in a stripe of the document index


class SplitSection:
    """The steps of building one section with all ranks, in their order.

    Parameters
    ----------
    communicator : Communicator
        Of all ranks.
    ranks : SplitUnit
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
        ranks: SplitUnit,
        section: SectionPlan,
        corpus: Corpus,
        places: dict[str, ArrayPlace],
        file: DataFile,
    ) -> None:
        self._communicator = communicator
        self._ranks = ranks
        self._section = section
        self._corpus = corpus
        self._places = places
        self._file = file
        self._first = self._last = NOTHING
        self._shuffle_digest = ""

    def shuffle(self) -> None:
        """Do this rank's share of the shuffles; for most ranks that is nothing."""
        section, rank = self._section, self._communicator.rank
        if rank == self._ranks.documents_rank:
            self._first = np.empty(section.first_documents, np.int64)
            fill_epochs(section, self._corpus.idx, self._first, Mt19937(section.seed))
        if rank == self._ranks.rest_rank:
            generator = Mt19937(section.seed)
            generator.skip_shuffle(section.first_documents)
            self._last = np.empty(section.documents - section.first_documents, np.int64)
            fill_epochs(section, self._corpus.idx, self._last, generator)
            writer = ArrayWriter(self._file, self._places["shuffle_index"])
            writer.append(shuffle_index(section, generator))
            self._shuffle_digest = writer.finish()

    def cut(self) -> dict[str, str]:
        """Share out the document index, and write it and the sample index. Collective.

        Returns
        -------
        dict of str to str
            The digest of each array, on all ranks.
        """
        communicator, section = self._communicator, self._section
        bounds = slice_bounds(section.documents, communicator.size, SLICE_STEP)
        entries = self._share_out(bounds)
        begin = bounds[communicator.rank]
        tokens = together(communicator, lambda: tokens_of(entries), "summing lengths")
        sums = communicator.gather_all(tokens, int, "sums of lengths")
        firsts = [sum(sums[:rank]) for rank in range(communicator.size)]
        rows = row_bounds(firsts, section)
        first, last = rows[communicator.rank : communicator.rank + 2]
        emitter = RowEmitter(section, entries, begin, firsts[communicator.rank], first)
        pairs = together(communicator, lambda: emitter.emit(last - first), "cutting samples")
        row_size = 2 * pairs.itemsize
        offset, own = self._settle_edges(pairs, [row * row_size for row in rows])
        return self._write(4 * begin, entries, offset, own)

    def _share_out(self, bounds: Sequence[int]) -> NDArray[np.int64]:
        """Return this rank's slice of the document index. Collective."""
        communicator, middle = self._communicator, self._section.first_documents
        rank = communicator.rank
        mine = np.empty(bounds[rank + 1] - bounds[rank], np.int64)
        sends, receives = [], []
        for holder, part_begin, part_end, part in (
            (self._ranks.documents_rank, 0, middle, self._first),
            (self._ranks.rest_rank, middle, self._section.documents, self._last),
        ):
            for taker, first, last in overlaps(bounds, part_begin, part_end):
                if holder == rank:
                    piece = part[first - part_begin : last - part_begin]
                    if taker == rank:
                        mine[first - bounds[rank] : last - bounds[rank]] = piece
                    else:
                        sends.append(Message(taker, piece))
                elif taker == rank:
                    room = mine[first - bounds[rank] : last - bounds[rank]]
                    receives.append(Message(holder, room))
        communicator.exchange(sends, receives, "slices of a document index")
        self._first = self._last = NOTHING
        return mine

    def _settle_edges(
        self, pairs: NDArray[Any], bounds: Sequence[int]
    ) -> tuple[int, NDArray[np.uint8]]:
        """Give the start of this rank's rows to whoever owns its stripe. Collective.

        Returns
        -------
        offset : int
            In the array, in bytes; a multiple of a stripe.
        own : ndarray of uint8
            What this rank is to write there.
        """
        rank = self._communicator.rank
        begin, offset = bounds[rank], bounds[rank]
        flat = pairs.reshape(-1).view(np.uint8)
        sends, receives = [], []
        for edge in edges(bounds, STRIPE):
            if edge.sender == rank:
                sends.append(Message(edge.owner, flat[: edge.end - begin]))
                offset = edge.end
            elif edge.owner == rank:
                receives.append(Message(edge.sender, np.empty(edge.end - edge.begin, np.uint8)))
        self._communicator.exchange(sends, receives, "edges of a sample index")
        received = [message.data for message in receives]
        return offset, np.concatenate([flat[offset - begin :], *received])

    def _write(
        self,
        document_offset: int,
        entries: NDArray[np.int64],
        sample_offset: int,
        pairs: NDArray[np.uint8],
    ) -> dict[str, str]:
        """Write this rank's slices, and put the digests together. Collective."""

        def write() -> tuple[bytes, bytes, str]:
            place = self._places["document_index"]
            documents = documents_of(entries)
            self._file.write(place.offset + document_offset, documents)
            self._file.write(self._places["sample_index"].offset + sample_offset, pairs)
            document_leaves = leaves_of(documents.view(np.uint8)).tobytes()
            return document_leaves, leaves_of(pairs).tobytes(), self._shuffle_digest

        mine = together(self._communicator, write, "writing slices")
        kind = tuple[bytes, bytes, str]
        all_leaves = self._communicator.gather_all(mine, kind, "digests of slices")
        return {
            "document_index": _digest_of([leaves for leaves, _, _ in all_leaves]),
            "sample_index": _digest_of([leaves for _, leaves, _ in all_leaves]),
            "shuffle_index": all_leaves[self._ranks.rest_rank][2],
        }


def _digest_of(leaves: Sequence[bytes]) -> str:
    return array_digest(np.frombuffer(b"".join(leaves), np.uint64))
