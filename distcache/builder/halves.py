"""Let two ranks shuffle a section, half of the steps each.

Rank 0 shuffles the upper part of the documents, while rank 1 skips these draws in the generator's
stream and shuffles the rest. Then both send the document index to all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

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
from distcache.builder.shared_section import Shuffle, Steps
from distcache.builder.slices import overlaps, windows
from distcache.kernels import Mt19937
from distcache.plan.memory import lower_type, pivot_of, stream_step
from distcache.ranks.agreement import on_all_ranks
from distcache.ranks.communicator import Communicator, Message
from distcache.storage.unfinished_file import UnfinishedFile

UPPER: Final = 0  # rank that shuffles the upper part of the documents
REST: Final = 1  # rank that shuffles what is left, and the samples


class HalvedShuffle(Shuffle):
    """A shuffle by two ranks, of a build that has at least two."""

    def __init__(self, job: Job, item: int, file: UnfinishedFile) -> None:
        super().__init__(job, item, file)
        self._pivot = pivot_of(self._section, workers=2)
        self._samples = b""

    def documents(self, bounds: Sequence[int]) -> tuple[list[int], Steps]:
        """Shuffle the documents, and the samples, which the same generator draws. Collective."""
        communicator, section = self._communicator, self._section
        held = self._send_lower(*on_all_ranks(communicator, self._shuffle, "shuffling"))
        parts = (range(section.first_documents), range(section.first_documents, section.documents))
        stream = EntryStream(communicator, parts, held, bounds, stream_step(communicator.size))
        return stream.first_tokens(section.size.epochs * section.tokens), iter(stream)

    def samples(self) -> bytes:
        """Return the leaf digests of the shuffle index; only one rank has written it."""
        return self._samples

    def _shuffle(self) -> tuple[EntryMemory, NDArray[Any]]:
        """Do this rank's share; most ranks have none.

        Returns
        -------
        (EntryMemory, ndarray)
            The part of the document index that it has shuffled, and the lower positions, which
            only the rank of the rest has.
        """
        section, rank = self._section, self._communicator.rank
        lower: NDArray[Any] = np.empty(0, lower_type(self._pivot))
        memory = EntryMemory(0)
        if rank == UPPER:
            memory = EntryMemory(section.first_documents)
            idx = self._job.idx(section)
            fill_epochs(section, idx, memory.values, 0)
            idx.require_intact()
            shuffle_upper(self._pivot, memory.values, Mt19937(section.seed))
        elif rank == REST:
            generator = skip_upper(section, self._pivot)
            lower = shuffle_lower(self._pivot, generator)
            idx = self._job.idx(section)
            memory = shuffle_last(section, idx, generator)
            idx.require_intact()
            samples = shuffle_samples(section, generator)
            writer = write_in_chunks(self._file, self._place, samples)
            self._samples = writer.leaves().tobytes()
        return memory, lower

    def _send_lower(self, memory: EntryMemory, lower: NDArray[Any]) -> Entries | None:
        """Send the lower positions to the rank of the upper part. Collective.

        Returns
        -------
        Entries or None
            The part of the document index that this rank holds.
        """
        rank = self._communicator.rank
        sends, receives = [], []
        if rank == REST:
            sends.append(Message(UPPER, lower))
        elif rank == UPPER:
            lower = np.empty(self._pivot, lower_type(self._pivot))
            receives.append(Message(REST, lower))
        self._communicator.exchange(sends, receives, "positions of a document index")
        if rank == UPPER:
            return Entries(0, memory, lower)
        return Entries(self._section.first_documents, memory) if rank == REST else None


class EntryStream:
    """Sends every rank its slice of a document index, in steps that all ranks take together.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks.
    parts : (range, range)
        Positions that rank `UPPER` holds, and those that rank `REST` holds.
    held : Entries or None
        The part that this rank holds.
    bounds : sequence of int, length ranks + 1
        Rank r takes positions [bounds[r], bounds[r + 1]).
    step : int
        Entries that a rank takes at a time.
    """

    def __init__(
        self,
        communicator: Communicator,
        parts: tuple[range, range],
        held: Entries | None,
        bounds: Sequence[int],
        step: int,
    ) -> None:
        self._communicator = communicator
        self._parts = parts
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
            if (held := self._held) is not None:
                for rank, begin, end in overlaps(self._bounds, held.begin, held.end):
                    if rank > 0:
                        sums[rank] += held.tokens(begin, end, self._step)
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
            if self._held is not None:
                for begin, end in chunk:
                    self._held.release(begin, end)

    def _take(self, chunk: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
        me = self._communicator.rank
        sends, receives, own = [], [], []
        for holder, part in zip((UPPER, REST), self._parts, strict=True):
            for taker, (begin, end) in enumerate(chunk):
                first, last = max(begin, part.start), min(end, part.stop)
                if first >= last or me not in (holder, taker):
                    continue
                if holder == me:
                    assert self._held is not None, "the rank holds this part"
                    piece = self._held.read(first, last)
                    if taker != me:
                        sends.append(Message(taker, piece))
                else:
                    piece = np.empty(last - first, np.int64)
                    receives.append(Message(holder, piece))
                if taker == me:
                    own.append(piece)
        self._communicator.exchange(sends, receives, "a document index")
        return own[0] if len(own) == 1 else np.concatenate([np.empty(0, np.int64), *own])
