"""Write the `.idx` of a corpus: whole, or in slices that different ranks write at their places.

The format is described in `distcache.corpus.idx`.
"""

from __future__ import annotations

import os
from typing import Final

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from distcache.corpus.idx import HEADER, HEADER_SIZE, ITEM_TYPES, MAGIC, code_of, idx_path
from distcache.errors import CorpusError
from distcache.storage.files import atomic_write, no_space_as_error, recreate, write_range

CHUNK_SEQUENCES: Final = 1 << 17  # sequences at a time: their offsets stay in the processor's cache


class IdxPlan(msgspec.Struct, frozen=True):
    """The layout of an `.idx`."""

    type_code: int  # type code of the tokens
    # number of sequences and of documents
    sequences: int
    documents: int
    has_modes: bool = False  # whether each sequence has a mode

    @property
    def item_size(self) -> int:
        """Bytes per token."""
        return ITEM_TYPES[self.type_code].itemsize

    @property
    def offsets_begin(self) -> int:
        """Byte at which the offsets begin; the lengths begin after the header."""
        return HEADER_SIZE + 4 * self.sequences

    @property
    def bounds_begin(self) -> int:
        """Byte at which the document boundaries begin."""
        return self.offsets_begin + 8 * self.sequences

    @property
    def modes_begin(self) -> int:
        """Byte at which the modes begin."""
        return self.bounds_begin + 8 * (self.documents + 1)

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return self.modes_begin + self.sequences * self.has_modes

    @property
    def header(self) -> bytes:
        """The file's first bytes."""
        return HEADER.pack(MAGIC, 1, self.type_code, self.sequences, self.documents + 1)


def lay_out_idx(prefix: str, plan: IdxPlan) -> None:
    """Make an `.idx` at its size, with the bytes that belong to no sequence and no document.

    Raises
    ------
    NoSpace
        If the disk is full.
    """
    path = idx_path(prefix)
    with no_space_as_error(path), recreate(path) as stream:
        stream.truncate(plan.size)
        write_range(stream.fileno(), 0, plan.header)
        write_bounds(stream.fileno(), plan, plan.documents, np.array([plan.sequences]))
        os.fsync(stream.fileno())


def write_lengths(
    descriptor: int, plan: IdxPlan, first: int, tokens_before: int, lengths: NDArray[np.int32]
) -> None:
    """Write the lengths and the offsets of sequences [first, first + size).

    Parameters
    ----------
    descriptor : int
        The open file.
    plan : IdxPlan
        Plan of the whole file.
    first : int
        Number of the first sequence.
    tokens_before : int
        Tokens of all sequences before it.
    lengths : ndarray of int32, shape (size,)
        Tokens of each.
    """
    write_range(descriptor, HEADER_SIZE + 4 * first, np.ascontiguousarray(lengths, "<i4"))
    room = np.empty(min(CHUNK_SEQUENCES, len(lengths)) + 1, "<i8")
    position = tokens_before * plan.item_size
    for begin in range(0, len(lengths), CHUNK_SEQUENCES):
        part = lengths[begin : begin + CHUNK_SEQUENCES]
        offsets = room[: len(part) + 1]
        offsets[0] = 0
        np.cumsum(part, dtype=np.int64, out=offsets[1:])
        offsets *= plan.item_size
        offsets += position
        write_range(descriptor, plan.offsets_begin + 8 * (first + begin), offsets[:-1])
        position = int(offsets[-1])


def write_sequences(
    descriptor: int,
    plan: IdxPlan,
    first: int,
    lengths: NDArray[np.int32],
    offsets: NDArray[np.int64],
) -> None:
    """Write the lengths and the offsets of sequences [first, first + size) of a view."""
    write_range(descriptor, HEADER_SIZE + 4 * first, np.ascontiguousarray(lengths, "<i4"))
    offsets = np.ascontiguousarray(offsets, "<i8")
    write_range(descriptor, plan.offsets_begin + 8 * first, offsets)


def write_bounds(descriptor: int, plan: IdxPlan, first: int, bounds: NDArray[np.int64]) -> None:
    """Write the document boundaries [first, first + size)."""
    write_range(descriptor, plan.bounds_begin + 8 * first, np.ascontiguousarray(bounds, "<i8"))


def write_idx(
    prefix: str,
    lengths: NDArray[np.int32],
    dtype: DTypeLike,
    bounds: NDArray[np.int64] | None = None,
    modes: NDArray[np.int8] | None = None,
) -> None:
    """Write the `.idx` of a corpus whose `.bin` exists.

    Parameters
    ----------
    prefix : str
        The path without suffix; a file that is there is replaced, once the new one is whole.
    lengths : ndarray of int32, shape (sequences,)
        Tokens per sequence.
    dtype : dtype
        The token type.
    bounds : ndarray of int64, shape (documents + 1,), or None
        Sequence numbers at which documents start, then the number of sequences; by default each
        sequence is a document.
    modes : ndarray of int8, shape (sequences,), or None
        Modes of multimodal sequences.

    Raises
    ------
    CorpusError
        If an `.idx` cannot name the token type.
    NoSpace
        If the disk is full.
    """
    sequences = len(lengths)
    documents = sequences if bounds is None else len(bounds) - 1
    plan = IdxPlan(code_of(dtype), sequences, documents, modes is not None)
    if documents < 0:
        raise CorpusError(f"{idx_path(prefix)}: expected at least one document boundary")
    with no_space_as_error(idx_path(prefix)), atomic_write(idx_path(prefix)) as stream:
        descriptor = stream.fileno()
        write_range(descriptor, 0, plan.header)
        write_lengths(descriptor, plan, 0, 0, lengths)
        for first in range(0, documents + 1, CHUNK_SEQUENCES):
            last = min(first + CHUNK_SEQUENCES, documents + 1)
            some = np.arange(first, last) if bounds is None else bounds[first:last]
            write_bounds(descriptor, plan, first, some)
        if modes is not None:
            write_range(descriptor, plan.modes_begin, np.ascontiguousarray(modes, "i1"))
