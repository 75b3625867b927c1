"""A large section, built by all ranks together.

One rank shuffles the upper part of the documents, while another skips these draws in the
generator's stream and shuffles the rest. Then both send the document index to all ranks: every rank
gets a slice, knows from the prefix sums of the lengths where its tokens start, and cuts and
writes the samples that begin in them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distcache.builder.arrays import write_in_chunks
from distcache.builder.entries import (
    Entries,
    EntryMemory,
    fill_epochs,
    shuffle_last,
    shuffle_lower,
    shuffle_samples,
    shuffle_upper,
    skip_upper,
)
from distcache.builder.job import Job
from distcache.builder.section_slice import SectionSlice, joined_digests
from distcache.builder.slices import overlaps, windows
from distcache.kernels import Mt19937
from distcache.plan.assignment import SplitUnit
from distcache.plan.memory import DOCUMENT_BYTES, lower_type, pivot_of, stream_step
from distcache.plan.model import STRIPE
from distcache.ranks.agreement import on_all_ranks
from distcache.ranks.communicator import Communicator, Message
from distcache.ranks.partition import slice_bounds
from distcache.storage.unfinished_file import UnfinishedFile


class SplitSection:
    """The steps of building one section with all ranks: `shuffle`, then `cut`.

    Parameters
    ----------
    job : Job
        The build.
    roles : SplitUnit
        Unit of the section, and the ranks that shuffle it.
    file : UnfinishedFile
        The unfinished cache.
    """

    def __init__(self, job: Job, roles: SplitUnit, file: UnfinishedFile) -> None:
        (item,) = job.layout.units[roles.unit].items
        self._communicator = job.communicator
        self._roles = roles
        self._section = job.plan.sections[item]
        self._corpus = job.corpus(self._section)
        self._places = job.places(item)
        self._file = file
        self._pivot = pivot_of(self._section, workers=2)
        self._held: dict[int, Entries] = {}
        self._upper = EntryMemory(0)
        self._lower: NDArray[Any] = np.empty(0, lower_type(self._pivot))
        self._samples = b""

    def shuffle(self) -> None:
        """Do this rank's share of the shuffles; most ranks have none."""
        section, rank = self._section, self._communicator.rank
        if rank == self._roles.upper_rank:
            self._upper = EntryMemory(section.first_documents)
            fill_epochs(section, self._corpus.idx, self._upper.values, 0)
            self._corpus.idx.require_intact()
            shuffle_upper(self._pivot, self._upper.values, Mt19937(section.seed))
        elif rank == self._roles.rest_rank:
            generator = skip_upper(section, self._pivot)
            self._lower = shuffle_lower(self._pivot, generator)
            last = shuffle_last(section, self._corpus.idx, generator)
            self._corpus.idx.require_intact()
            self._held[1] = Entries(section.first_documents, last)
            samples = shuffle_samples(section, generator)
            writer = write_in_chunks(self._file, self._places["shuffle_index"], samples)
            self._samples = writer.leaves().tobytes()

    def cut(self) -> dict[str, str]:
        """Distribute the document index, and write it and the sample index. Collective.

        Returns
        -------
        dict of str to str
            The digest of each array, on all ranks.
        """
        communicator, section = self._communicator, self._section
        self._send_lower()
        bounds = slice_bounds(section.documents, communicator.size, STRIPE // DOCUMENT_BYTES)
        stream = EntryStream(
            communicator, self._holders(), self._held, bounds, stream_step(communicator.size)
        )
        firsts = stream.first_tokens(section.size.epochs * section.tokens)
        part = SectionSlice(communicator, section, self._places, self._file, bounds, firsts)
        for begin, entries in stream:
            on_all_ranks(communicator, partial(part.feed, begin, entries), "writing documents")
        self._held = {}
        return joined_digests(communicator, part.finish() | {"shuffle_index": self._samples})

    def _send_lower(self) -> None:
        """Send the lower positions to the rank that has the upper part. Collective."""
        sends, receives = [], []
        if self._communicator.rank == self._roles.rest_rank:
            sends.append(Message(self._roles.upper_rank, self._lower))
        elif self._communicator.rank == self._roles.upper_rank:
            self._lower = np.empty(self._pivot, lower_type(self._pivot))
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


class EntryStream:
    """Sends every rank its slice of a document index, in steps that all ranks take together.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks.
    holders : sequence of (int, int, int)
        The rank that holds each part, and the part's positions [begin, end); ascending.
    held : mapping of int to Entries
        The parts that this rank holds, by their place in `holders`.
    bounds : sequence of int, length ranks + 1
        Rank r takes positions [bounds[r], bounds[r + 1]).
    step : int
        Entries that a rank takes at a time.
    """

    def __init__(
        self,
        communicator: Communicator,
        holders: Sequence[tuple[int, int, int]],
        held: Mapping[int, Entries],
        bounds: Sequence[int],
        step: int,
    ) -> None:
        self._communicator = communicator
        self._holders = holders
        self._held = held
        self._bounds = bounds
        self._step = step

    def first_tokens(self, total: int) -> list[int]:
        """Return the tokens before each rank's slice. Collective.

        Parameters
        ----------
        total : int
            The tokens of the whole document index. Counting back from them avoids the sum over
            the first slice, which is the most expensive: it has to be gathered.
        """

        def add_up() -> list[int]:
            sums = [0] * self._communicator.size
            for entries in self._held.values():
                for rank, begin, end in overlaps(self._bounds, entries.begin, entries.end):
                    if rank > 0:
                        sums[rank] += entries.tokens(begin, end, self._step)
            return sums

        mine = on_all_ranks(self._communicator, add_up, "summing lengths")
        shares = self._communicator.allgather(mine, list[int], "sums of lengths")
        sums = [sum(column) for column in zip(*shares, strict=True)]
        return [0, *(total - sum(sums[rank:]) for rank in range(1, len(sums)))]

    def __iter__(self) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield the position of this rank's next entries, and the entries. Collective.

        Ranks with shorter slices get nothing in the last steps.
        """
        for chunk in windows(self._bounds, self._step):
            yield chunk[self._communicator.rank][0], self._take(chunk)
            for entries in self._held.values():
                for begin, end in chunk:
                    entries.release(begin, end)

    def _take(self, chunk: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
        me = self._communicator.rank
        sends, receives, own = [], [], []
        for part, (holder, part_begin, part_end) in enumerate(self._holders):
            for taker, (begin, end) in enumerate(chunk):
                first, last = max(begin, part_begin), min(end, part_end)
                if first >= last or me not in (holder, taker):
                    continue
                if holder == me:
                    piece = self._held[part].read(first, last)
                    if taker != me:
                        sends.append(Message(taker, piece))
                else:
                    piece = np.empty(last - first, np.int64)
                    receives.append(Message(holder, piece))
                if taker == me:
                    own.append(piece)
        self._communicator.exchange(sends, receives, "a document index")
        return own[0] if len(own) == 1 else np.concatenate([np.empty(0, np.int64), *own])
