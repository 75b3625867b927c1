"""The document index during a build: documents with their lengths, shuffled by two workers.

Megatron-Core's ``GPTDataset`` draws from one generator per section: it shuffles the documents of
all passes (or of all but the last, and then the last), then the samples in the same way. A shuffle
goes from the last position down. Its steps above a pivot are one worker's; what is left is a
shuffle of the positions below the pivot, which another worker computes at the same time from a
generator that has skipped the draws of the first.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from distcache.corpus import Idx
from distcache.kernels import Mt19937, fill_entries, gather
from distcache.plan.memory import ENTRY_BYTES, MAPPED_FROM, lower_type
from distcache.plan.model import SectionPlan

NOTHING: Final = np.empty(0, np.int32)
FILL_STEP: Final = 1 << 22  # documents, after which the lengths of a large section are released


class EntryMemory:
    """Memory for entries that can be released piece by piece.

    The page cache takes the released pages for what is written next. On virtual machines, where
    touching new memory is expensive, that makes writing several times faster.

    Parameters
    ----------
    size : int
        Entries.
    """

    def __init__(self, size: int) -> None:
        self._map: mmap.mmap | None = None
        if ENTRY_BYTES * size < MAPPED_FROM:
            self.values: NDArray[np.int64] = np.empty(size, np.int64)
        else:
            self._map = mmap.mmap(-1, ENTRY_BYTES * size, flags=mmap.MAP_PRIVATE)
            with contextlib.suppress(OSError):  # the kernel may have no huge pages
                self._map.madvise(mmap.MADV_HUGEPAGE)
            self.values = np.frombuffer(self._map, np.int64, size)

    def release(self, begin: int, end: int) -> None:
        """Release entries [begin, end), as far as they fill pages."""
        first = -(-ENTRY_BYTES * begin // mmap.PAGESIZE) * mmap.PAGESIZE
        last = ENTRY_BYTES * end // mmap.PAGESIZE * mmap.PAGESIZE
        if self._map is not None and first < last:
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)


def fill_passes(section: SectionPlan, idx: Idx, entries: NDArray[np.int64], begin: int) -> None:
    """Fill a slice of the document index before the shuffle, and release the lengths.

    Parameters
    ----------
    section : SectionPlan
        The section.
    idx : Idx
        Index of the section's corpus.
    entries : ndarray of int64
        The slice. Each entry gets the document in its lower 32 bits, and its length in tokens in
        the upper.
    begin : int
        Start of the slice, counted from the start of any pass.
    """
    one_pass = section.end - section.begin
    done = 0
    while done < len(entries):
        first = section.begin + (begin + done) % one_pass
        last = min(section.end, first + min(len(entries) - done, FILL_STEP))
        fill_entries(idx.lengths, first, entries[done : done + last - first])
        if one_pass > FILL_STEP:  # mapped lengths count as memory of the process
            idx.release_lengths(first, last)
        done += last - first
    idx.release_lengths(section.begin, section.end)


def shuffle_upper(pivot: int, entries: NDArray[np.int64], generator: Mt19937) -> None:
    """Shuffle the first part of a document index down to the pivot.

    Parameters
    ----------
    pivot : int
        Result of `distcache.plan.costs.pivot_of`.
    entries : ndarray of int64, shape (section.first_documents,)
        Entries from `fill_passes`; shuffled in place.
    generator : Mt19937
        Fresh; left after the draws.
    """
    generator.shuffle(entries, max(pivot, 1))


def skip_upper(section: SectionPlan, pivot: int) -> Mt19937:
    """Return a generator as `shuffle_upper` leaves its own."""
    generator = Mt19937(section.seed)
    generator.skip_shuffle(section.first_documents, max(pivot, 1))
    return generator


def shuffle_lower(pivot: int, generator: Mt19937) -> NDArray[Any]:
    """Shuffle the positions below the pivot.

    Parameters
    ----------
    pivot : int
        Pivot as in `shuffle_upper`.
    generator : Mt19937
        Generator from `skip_upper`; left after the draws.

    Returns
    -------
    ndarray of int32 or int64, shape (pivot,)
        Index at which `shuffle_upper` left the value of each position.
    """
    positions: NDArray[Any] = np.arange(pivot, dtype=lower_type(pivot))
    generator.shuffle(positions)
    return positions


def shuffle_last(section: SectionPlan, idx: Idx, generator: Mt19937) -> EntryMemory:
    """Shuffle the last pass of a document index if it is separate, else return no entries.

    Parameters
    ----------
    section : SectionPlan
        The section.
    idx : Idx
        Index of the section's corpus.
    generator : Mt19937
        Generator after the draws of the first part; left after those of the last pass.

    Returns
    -------
    EntryMemory
        Memory of section.documents - section.first_documents entries.
    """
    memory = EntryMemory(section.documents - section.first_documents)
    fill_passes(section, idx, memory.values, 0)
    generator.shuffle(memory.values)
    return memory


def shuffle_samples(section: SectionPlan, generator: Mt19937) -> NDArray[Any]:
    """Return the shuffle index.

    Parameters
    ----------
    section : SectionPlan
        The section.
    generator : Mt19937
        Generator after the draws of all documents.

    Returns
    -------
    ndarray of uint32 or int64, shape (section.shuffled_samples,)
    """
    samples: NDArray[Any] = np.arange(section.shuffled_samples, dtype=section.shuffle_type)
    generator.shuffle(samples[: section.first_samples])
    generator.shuffle(samples[section.first_samples :])
    return samples


class Entries:
    """A document index of two parts, to be read in order of positions.

    Parameters
    ----------
    begin : int
        The position of the first entry.
    memory : EntryMemory
        Shuffled by `shuffle_upper`, or from `shuffle_last`.
    lower : ndarray of int32 or int64
        Result of `shuffle_lower`; empty if the entries are in order.
    """

    def __init__(self, begin: int, memory: EntryMemory, lower: NDArray[Any] = NOTHING) -> None:
        self.begin = begin
        self.end = begin + memory.values.size
        self._memory = memory
        self._values = memory.values
        self._lower = lower

    def read(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return the entries of positions [begin, end), a view where they are in order."""
        begin, end = begin - self.begin, end - self.begin
        if begin >= self._lower.size:
            return self._values[begin:end]
        read = np.empty(end - begin, np.int64)
        gathered = min(end, self._lower.size) - begin
        gather(self._values, self._lower[begin : begin + gathered], read[:gathered])
        read[gathered:] = self._values[begin + gathered : end]
        return read

    def release(self, begin: int, end: int) -> None:
        """Release the memory of positions [begin, end), which will not be read again."""
        first = max(begin - self.begin, self._lower.size)
        last = min(end, self.end) - self.begin
        if first < last:
            self._memory.release(first, last)


class LaterEntries:
    """Entries of the last pass, shuffled when they are first read, after others were released.

    Parameters
    ----------
    begin, end : int
        Positions of the first entry, and after the last one.
    make : callable
        Returns their memory.
    """

    def __init__(self, begin: int, end: int, make: Callable[[], EntryMemory]) -> None:
        self.begin, self.end = begin, end
        self._make = make
        self._entries: Entries | None = None

    def read(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return the entries of positions [begin, end), a view."""
        if self._entries is None:
            self._entries = Entries(self.begin, self._make())
        return self._entries.read(begin, end)

    def release(self, begin: int, end: int) -> None:
        """Release the memory of positions [begin, end), which will not be read again."""
        if self._entries is not None:
            self._entries.release(begin, end)


def read_across(parts: Sequence[Entries | LaterEntries], begin: int, end: int) -> NDArray[np.int64]:
    """Return the entries of positions [begin, end), which may be in several parts."""
    pieces = [
        part.read(max(begin, part.begin), min(end, part.end))
        for part in parts
        if max(begin, part.begin) < min(end, part.end)
    ]
    return pieces[0] if len(pieces) == 1 else np.concatenate([*pieces, NOTHING.astype(np.int64)])


def documents_of(entries: NDArray[np.int64]) -> NDArray[np.int32]:
    """Copy the documents of entries, int32 of the same shape."""
    return np.ascontiguousarray(entries.view(np.int32)[::2])


def tokens_of(entries: NDArray[np.int64]) -> int:
    """Return the tokens of entries."""
    return int(entries.view(np.int32)[1::2].sum(dtype=np.int64))
