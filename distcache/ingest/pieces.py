"""How inputs are cut into pieces, and pieces dealt to ranks: pure, and the same for any ranks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from distcache.ingest.inputs import Input

__all__ = ["Piece", "cut_at_documents", "make_pieces", "make_tasks", "piece_bytes"]

SMALLEST: Final = 1 << 20  # bytes; half a second of work for a tokenizer
MOST: Final = 1 << 16  # pieces of an ingest, roughly: what is known of each is kept


class Piece(msgspec.Struct, frozen=True):
    """A part of an input that one worker reads.

    Attributes
    ----------
    source : int
        Which input.
    begin, end : int
        Row groups of a Parquet file; else bytes: the lines that begin in them.
    first_byte, last_byte : int
        The bytes of the file that its digest is taken of. The pieces of a file cover it.
    nbytes : int
        What it is likely to take to read it.
    """

    source: int
    begin: int
    end: int
    first_byte: int
    last_byte: int
    nbytes: int


def piece_bytes(inputs: Sequence[Input]) -> int:
    """Return the size of pieces: small enough to share out, large enough to be told apart."""
    return max(SMALLEST, sum(entry.size for entry in inputs) // MOST)


def make_pieces(inputs: Sequence[Input], step: int, *, lines: bool) -> list[Piece]:
    """Cut inputs into pieces of about `step` bytes, in order.

    Parameters
    ----------
    inputs : sequence of Input
        Parquet files with their row groups.
    step : int
        Bytes.
    lines : bool
        Whether `.txt` files have a document per line.

    Returns
    -------
    list of Piece
        At least one for each input. Only a file that can be read from anywhere is cut: not a
        compressed one, and not one that is a single document.
    """
    pieces = []
    for source, entry in enumerate(inputs):
        if entry.format == "parquet":
            pieces += _row_groups(source, entry, step)
        elif entry.compression or (entry.format == "txt" and not lines):
            pieces.append(Piece(source, 0, entry.size, 0, entry.size, entry.size))
        else:
            bounds = [*range(0, entry.size, step), entry.size] if entry.size else [0, 0]
            pieces += [
                Piece(source, begin, end, begin, end, end - begin)
                for begin, end in itertools.pairwise(bounds)
            ]
    return pieces


def _row_groups(source: int, entry: Input, step: int) -> list[Piece]:
    """Put small row groups together. Their bytes are taken to be spread evenly over the file."""
    bounds, nbytes = [0], 0
    for index, group in enumerate(entry.groups):
        if nbytes and nbytes + group.nbytes > step:
            bounds.append(index)
            nbytes = 0
        nbytes += group.nbytes
    count = len(entry.groups)
    bounds.append(count)
    return [
        Piece(
            source,
            begin,
            end,
            entry.size * begin // max(count, 1),
            entry.size * end // max(count, 1) if end < count else entry.size,
            sum(group.nbytes for group in entry.groups[begin:end]),
        )
        for begin, end in itertools.pairwise(bounds)
    ]


def make_tasks(pieces: Sequence[Piece], step: int) -> list[range]:
    """Put small pieces that follow one another together; each range is of indices of pieces."""
    tasks: list[range] = []
    begin, nbytes = 0, 0
    for index, piece in enumerate(pieces):
        if index > begin and nbytes + piece.nbytes > step:
            tasks.append(range(begin, index))
            begin, nbytes = index, 0
        nbytes += piece.nbytes
    return [*tasks, range(begin, len(pieces))] if pieces else []


def cut_at_documents(nbytes: NDArray[np.int64], room: int, limit: int) -> list[int]:
    """Return how many documents go into the corpus at hand, and into each of those that follow.

    Parameters
    ----------
    nbytes : ndarray of int64, shape (documents,)
        Of the `.bin`, for each document.
    room : int
        Bytes that the corpus at hand has left; `limit` if it is empty.
    limit : int
        Bytes that a corpus may have; a document that is longer gets a corpus to itself.

    Returns
    -------
    list of int
        The first may be 0, the others are not; they add up to the number of documents.
    """
    ends = np.cumsum(nbytes, dtype=np.int64)
    counts = []
    begin, before = 0, 0
    while begin < len(ends):
        end = int(np.searchsorted(ends, before + room, side="right"))
        if end == begin and room == limit:
            end = begin + 1
        counts.append(end - begin)
        begin, before, room = end, int(ends[end - 1]) if end else 0, limit
    return counts
