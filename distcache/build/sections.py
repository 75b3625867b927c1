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
    "fill_epochs",
    "near_lengths",
    "shuffle_index",
]


def fill_epochs(section: SectionPlan, documents: NDArray[np.int32], generator: Mt19937) -> None:
    """Fill a part of a document index, and shuffle it.

    Parameters
    ----------
    section : SectionPlan
        The section.
    documents : ndarray of int32, shape (whole epochs,)
        The first `section.first_documents` entries, or the rest; filled in place.
    generator : Mt19937
        Fresh for the first part, and for the rest as the first leaves it.
    """
    if documents.size:
        epochs = documents.reshape(-1, section.end - section.begin)
        epochs[:] = np.arange(section.begin, section.end, dtype=documents.dtype)
        generator.shuffle(documents)


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


def near_lengths(section: SectionPlan, idx: Idx) -> NDArray[np.int32]:
    """Copy the lengths of a section's documents to where random reads are fastest.

    The copy is aligned and may lie in huge pages; the mapped file can have neither.

    Returns
    -------
    ndarray of int32, shape (section.end - section.begin,)
        In tokens.
    """
    return np.array(idx.lengths[section.begin : section.end])


class RowEmitter:
    """Emits consecutive rows of a sample index from a slice of the document index.

    Parameters
    ----------
    section : SectionPlan
        The section.
    lengths : ndarray of int32
        From `near_lengths`.
    documents : ndarray of int32
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
        lengths: NDArray[np.int32],
        documents: NDArray[np.int32],
        slice_begin: int = 0,
        first_token: int = 0,
        first_row: int = 0,
    ) -> None:
        self._section = section
        self._lengths = lengths
        self._documents = documents
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
            self._lengths,
            self._documents,
            self._section.begin,
            self._slice_begin,
            self._section.cut.sequence_length,
            self._section.cut.extra_token,
            self._cursor,
            pairs[filled:],
        )
        if filled < rows:
            last = int(self._lengths[self._documents[-1] - self._section.begin])
            offset = last - int(self._section.cut.extra_token)
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
    documents = np.empty(section.documents, np.int32)
    fill_epochs(section, documents[: section.first_documents], generator)
    fill_epochs(section, documents[section.first_documents :], generator)
    digests = {
        "document_index": _write(file, places["document_index"], _in_chunks(documents)),
        "sample_index": _write(
            file, places["sample_index"], _rows(section, near_lengths(section, idx), documents)
        ),
    }
    del documents
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


def _rows(
    section: SectionPlan, lengths: NDArray[np.int32], documents: NDArray[np.int32]
) -> Iterator[NDArray[Any]]:
    emitter = RowEmitter(section, lengths, documents)
    rows = section.size.samples + 1
    step = CHUNK_BYTES // (2 * np.dtype(section.sample_type).itemsize)
    return (emitter.emit(min(step, rows - begin)) for begin in range(0, rows, step))
