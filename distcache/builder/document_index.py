"""The document index during a build: the documents of all passes, shuffled by two workers.

Megatron-Core's ``GPTDataset`` draws from one generator per section: it shuffles the documents of
all passes (or of all but the last, and then the last), then the samples in the same way. A shuffle
goes from the last position down. Its steps above a pivot are one worker's; what is left is a
shuffle of the positions below the pivot, which another worker computes at the same time from a
generator that has skipped the draws of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from distcache.builder.arrays import LargeArray
from distcache.kernels import Mt19937, gather
from distcache.plan.memory import lower_type
from distcache.plan.model import SectionPlan

NOTHING: Final = np.empty(0, np.int32)
FILL_STEP: Final = 1 << 18  # documents that are filled in at a time


def fill_passes(section: SectionPlan, documents: NDArray[np.int32], begin: int) -> None:
    """Fill a slice of the document index as it is before the shuffle: pass after pass.

    Parameters
    ----------
    section : SectionPlan
        The section.
    documents : ndarray of int32
        The slice.
    begin : int
        Start of the slice, counted from the start of any pass.
    """
    one_pass = section.end - section.begin
    done = 0
    while done < len(documents):
        first = section.begin + (begin + done) % one_pass
        last = min(section.end, first + min(len(documents) - done, FILL_STEP))
        documents[done : done + last - first] = np.arange(first, last, dtype=np.int32)
        done += last - first


def shuffle_upper(pivot: int, documents: NDArray[np.int32], generator: Mt19937) -> None:
    """Shuffle the first part of a document index down to the pivot.

    Parameters
    ----------
    pivot : int
        Result of `distcache.plan.memory.pivot_of`.
    documents : ndarray of int32, shape (section.first_documents,)
        Filled by `fill_passes`; shuffled in place.
    generator : Mt19937
        Fresh; left after the draws.
    """
    generator.shuffle(documents, max(pivot, 1))


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


def shuffle_last(section: SectionPlan, generator: Mt19937) -> LargeArray:
    """Return the last pass, shuffled, if it is shuffled apart; else an empty array.

    Parameters
    ----------
    section : SectionPlan
        The section.
    generator : Mt19937
        Generator after the draws of the first part; left after those of the last pass.

    Returns
    -------
    LargeArray
        Memory of section.documents - section.first_documents documents.
    """
    memory = LargeArray(section.documents - section.first_documents)
    fill_passes(section, memory.values, 0)
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


class IndexPart:
    """A part of the document index, to be read in order of positions.

    Parameters
    ----------
    begin : int
        The position of its first document.
    memory : LargeArray
        Shuffled by `shuffle_upper`, or from `shuffle_last`.
    lower : ndarray of int32 or int64
        Result of `shuffle_lower`; empty if the documents are in order.
    """

    def __init__(self, begin: int, memory: LargeArray, lower: NDArray[Any] = NOTHING) -> None:
        self.begin = begin
        self.end = begin + memory.values.size
        self._memory = memory
        self._values = memory.values
        self._lower = lower

    def read(self, begin: int, end: int) -> NDArray[np.int32]:
        """Return the documents of positions [begin, end), a view where they are in order."""
        begin, end = begin - self.begin, end - self.begin
        if begin >= self._lower.size:
            return self._values[begin:end]
        read = np.empty(end - begin, np.int32)
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


class LaterPart:
    """The last pass, shuffled when it is first read, after what is before it was released.

    Parameters
    ----------
    begin, end : int
        Positions of the first document, and after the last one.
    make : callable
        Returns their memory.
    """

    def __init__(self, begin: int, end: int, make: Callable[[], LargeArray]) -> None:
        self.begin, self.end = begin, end
        self._make = make
        self._part: IndexPart | None = None

    def read(self, begin: int, end: int) -> NDArray[np.int32]:
        """Return the documents of positions [begin, end), a view."""
        if self._part is None:
            self._part = IndexPart(self.begin, self._make())
        return self._part.read(begin, end)

    def release(self, begin: int, end: int) -> None:
        """Release the memory of positions [begin, end), which will not be read again."""
        if self._part is not None:
            self._part.release(begin, end)


def read_across(parts: Sequence[IndexPart | LaterPart], begin: int, end: int) -> NDArray[np.int32]:
    """Return the documents of positions [begin, end), which may be in several parts."""
    pieces = [
        part.read(max(begin, part.begin), min(end, part.end))
        for part in parts
        if max(begin, part.begin) < min(end, part.end)
    ]
    return pieces[0] if len(pieces) == 1 else np.concatenate([NOTHING, *pieces])
