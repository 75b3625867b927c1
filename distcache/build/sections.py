"""The three arrays of a section, whole or a part of them; Megatron-Core's order, bit for bit.

Megatron-Core's ``GPTDataset`` draws from one generator per section: it shuffles the documents of
all epochs (or of all but the last, and then the last), then the samples in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distcache.build.data_file import ArrayWriter, DataFile
from distcache.corpus import Idx
from distcache.kernels import Cursor, Mt19937, emit_boundaries
from distcache.plan.assignment import CHUNK_BYTES
from distcache.plan.layout import ArrayPlace
from distcache.plan.model import SectionPlan

__all__ = [
    "RowEmitter",
    "build_section",
    "documents_of",
    "fill_epochs",
    "shuffle_index",
    "tokens_of",
]


def fill_epochs(
    section: SectionPlan, idx: Idx, entries: NDArray[np.int64], generator: Mt19937
) -> None:
    """Fill a part of a section's document index with whole epochs, and shuffle it.

    Parameters
    ----------
    section : SectionPlan
        The section.
    idx : Idx
        Of its corpus.
    entries : ndarray of int64
        The first `section.first_documents` entries, or the rest. Each gets the document in its
        lower 32 bits, and the document's length in tokens in its upper.
    generator : Mt19937
        Fresh for the first part, and for the rest as the first leaves it.
    """
    if entries.size:
        epochs = entries.view(np.int32).reshape(-1, section.end - section.begin, 2)
        epochs[..., 0] = np.arange(section.begin, section.end, dtype=np.int32)
        epochs[..., 1] = idx.lengths[section.begin : section.end]
        generator.shuffle(entries)


def documents_of(entries: NDArray[np.int64]) -> NDArray[np.int32]:
    """Copy the documents of entries, int32 of the same shape."""
    return np.ascontiguousarray(entries.view(np.int32)[::2])


def tokens_of(entries: NDArray[np.int64]) -> int:
    """Return the tokens of entries."""
    return int(entries.view(np.int32)[1::2].sum(dtype=np.int64))


def shuffle_index(section: SectionPlan, generator: Mt19937) -> NDArray[Any]:
    """Return the shuffle index.

    Parameters
    ----------
    section : SectionPlan
        The section.
    generator : Mt19937
        As `fill_epochs` leaves it.

    Returns
    -------
    ndarray of uint32 or int64, shape (section.shuffled_samples,)
    """
    samples: NDArray[Any] = np.arange(section.shuffled_samples, dtype=section.shuffle_type)
    generator.shuffle(samples[: section.first_samples])
    if section.first_samples < section.shuffled_samples:
        generator.shuffle(samples[section.first_samples :])
    return samples


class RowEmitter:
    """Emits consecutive rows of a sample index from a slice of the document index.

    Parameters
    ----------
    section : SectionPlan
        The section.
    entries : ndarray of int64
        The slice.
    slice_begin : int
        Its first position in the document index.
    first_token : int
        Tokens before it.
    first_row : int
        The first row to emit.
    """

    def __init__(
        self,
        section: SectionPlan,
        entries: NDArray[np.int64],
        slice_begin: int = 0,
        first_token: int = 0,
        first_row: int = 0,
    ) -> None:
        self._section = section
        self._entries = entries
        self._slice_begin = slice_begin
        self._row = first_row
        self._cursor = Cursor(slice_begin, first_token, max(first_row, 1))

    def emit(self, rows: int) -> NDArray[Any]:
        """Return the next rows, int32 or int64 of shape (rows, 2).

        Row 0 is (0, 0). Rows whose token is beyond the last end with the last document: a partial
        sample that is kept.
        """
        pairs = np.empty((rows, 2), self._section.sample_type)
        filled = 0
        if self._row == 0 and rows:
            pairs[0] = 0
            filled = 1
        filled += emit_boundaries(
            self._entries,
            self._slice_begin,
            self._section.cut.sequence_length,
            self._section.cut.extra_token,
            self._cursor,
            pairs[filled:],
        )
        if filled < rows:
            offset = tokens_of(self._entries[-1:]) - int(self._section.cut.extra_token)
            pairs[filled:] = (self._section.documents - 1, offset)
        self._row += rows
        return pairs


def build_section(
    section: SectionPlan, idx: Idx, places: dict[str, ArrayPlace], file: DataFile
) -> dict[str, str]:
    """Build and write a whole section.

    Parameters
    ----------
    section : SectionPlan
        What to build.
    idx : Idx
        Of its corpus.
    places : dict of str to ArrayPlace
        Where to write each array.
    file : DataFile
        The unfinished cache.

    Returns
    -------
    dict of str to str
        The digest of each array.
    """
    generator = Mt19937(section.seed)
    entries = np.empty(section.documents, np.int64)
    fill_epochs(section, idx, entries[: section.first_documents], generator)
    fill_epochs(section, idx, entries[section.first_documents :], generator)
    digests = {
        "document_index": _write(file, places["document_index"], _documents(entries)),
        "sample_index": _write(file, places["sample_index"], _rows(section, entries)),
    }
    del entries
    samples = shuffle_index(section, generator)
    return digests | {"shuffle_index": _write(file, places["shuffle_index"], _in_chunks(samples))}


def _write(file: DataFile, place: ArrayPlace, pieces: Iterator[NDArray[Any]]) -> str:
    writer = ArrayWriter(file, place)
    for piece in pieces:
        writer.append(piece)
    return writer.finish()


def _in_chunks(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    step = CHUNK_BYTES // array.itemsize
    return (array[begin : begin + step] for begin in range(0, len(array), step))


def _documents(entries: NDArray[np.int64]) -> Iterator[NDArray[np.int32]]:
    return (documents_of(chunk) for chunk in _in_chunks(entries))


def _rows(section: SectionPlan, entries: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
    emitter = RowEmitter(section, entries)
    rows = section.size.samples + 1
    step = CHUNK_BYTES // (2 * np.dtype(section.sample_type).itemsize)
    return (emitter.emit(min(step, rows - begin)) for begin in range(0, rows, step))
