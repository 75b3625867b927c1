"""Cut inputs into pieces, and place their documents in corpora; pure functions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from distcache.ingest.document_buffer import Counts, PieceFacts
from distcache.ingest.inputs import Input
from distcache.ingest.readers.formats import FORMATS
from distcache.ranks.partition import balance

MIN_PIECE_BYTES: Final = 1 << 20  # bytes; ten to five hundred milliseconds of work for a tokenizer
ROUND_BYTES: Final = 4 << 20  # bytes for each rank: ranks that meet take time from their workers
MAX_PIECES: Final = 1 << 16  # pieces of an ingest, roughly; facts about each are kept


class InputPiece(msgspec.Struct, frozen=True):
    """A part of an input that one worker reads."""

    source: int  # number of the input
    # row groups of a Parquet file; else bytes: the lines that begin in them
    begin: int
    end: int
    # The bytes of its digest. The pieces of a file cover it.
    first_byte: int
    last_byte: int
    nbytes: int  # bytes to read, as a cost


def piece_bytes(inputs: Sequence[Input]) -> int:
    """Return the size of pieces: small enough to balance, large enough to be few."""
    return max(MIN_PIECE_BYTES, sum(entry.size for entry in inputs) // MAX_PIECES)


def make_pieces(inputs: Sequence[Input], step: int, *, lines: bool) -> list[InputPiece]:
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
    list of InputPiece
        Pieces, at least one for each input. Only a file that can be read from anywhere is
        cut: not a compressed one, and not one that is a single document.
    """
    pieces = []
    for source, entry in enumerate(inputs):
        if entry.is_table:
            pieces += _row_groups(source, entry, step)
        elif (
            entry.compression
            or FORMATS[entry.format].cut == "no"
            or (entry.format == "txt" and not lines)
        ):
            pieces.append(InputPiece(source, 0, entry.size, 0, entry.size, entry.size))
        else:
            bounds = [*range(0, entry.size, step), entry.size] if entry.size else [0, 0]
            pieces += [
                InputPiece(source, begin, end, begin, end, end - begin)
                for begin, end in itertools.pairwise(bounds)
            ]
    return pieces


def _row_groups(source: int, entry: Input, step: int) -> list[InputPiece]:
    """Group small row groups. Their bytes are assumed to be spread evenly over the file."""
    bounds, nbytes = [0], 0
    for index, group in enumerate(entry.groups):
        if nbytes and nbytes + group.nbytes > step:
            bounds.append(index)
            nbytes = 0
        nbytes += group.nbytes
    count = len(entry.groups)
    bounds.append(count)
    return [
        InputPiece(
            source,
            begin,
            end,
            entry.size * begin // max(count, 1),
            entry.size * end // max(count, 1) if end < count else entry.size,
            sum(group.nbytes for group in entry.groups[begin:end]),
        )
        for begin, end in itertools.pairwise(bounds)
    ]


def make_rounds(nbytes: Sequence[int], first: int, ranks: int) -> list[range]:
    """Group pieces into rounds: one piece for each rank, or more while they are small.

    Parameters
    ----------
    nbytes : sequence of int
        Bytes of each piece that is left.
    first : int
        Number of the first one.
    ranks : int
        Number of ranks.

    Returns
    -------
    list of range
        Numbers of the pieces of each round.
    """
    rounds: list[range] = []
    begin, gathered = first, 0
    for piece, size in enumerate(nbytes, first):
        gathered += size
        if piece + 1 - begin >= ranks and gathered >= ranks * ROUND_BYTES:
            rounds.append(range(begin, piece + 1))
            begin, gathered = piece + 1, 0
    end = first + len(nbytes)
    return rounds if begin == end else [*rounds, range(begin, end)]


def cut_at_documents(nbytes: NDArray[np.int64], room: int, limit: int) -> list[int]:
    """Return how many documents go into the current corpus, and into each following one.

    Parameters
    ----------
    nbytes : ndarray of int64, shape (documents,)
        Bytes of each document in the `.bin`.
    room : int
        Bytes that the current corpus has left; `limit` if it is empty.
    limit : int
        Bytes that a corpus may have; a longer document gets a separate corpus.

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


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """The documents of a piece in one corpus."""

    shard: int  # number of the corpus
    first: Counts  # counts before the segment in the corpus
    size: Counts  # counts of the segment


class PieceRecord(msgspec.Struct, frozen=True):
    """A finished piece."""

    piece: int  # number of the piece
    facts: PieceFacts
    digest: str  # digest of its documents, as `DocumentBuffer.digest`
    segments: list[Segment] = []  # places of its documents, once they are known


def place(at: Segment, size: Counts, item_size: int, limit: int | None) -> Segment | None:
    """Return where the documents of a piece go, or None if they must be split.

    Parameters
    ----------
    at : Segment
        The last one so far.
    size : Counts
        Counts of the piece.
    item_size : int
        Bytes per token.
    limit : int or None
        Bytes that a `.bin` may have.
    """
    first = at.first + at.size
    if limit is None or not size.documents or (first.tokens + size.tokens) * item_size <= limit:
        return Segment(at.shard, first, size)
    return None


def segments_of(
    at: Segment, lengths: NDArray[np.int32], counts: NDArray[np.int32], item_size: int, limit: int
) -> list[Segment]:
    """Split the documents of a piece where a corpus would exceed the limit.

    Parameters
    ----------
    at : Segment
        The last one so far.
    lengths : ndarray of int32, shape (sequences,)
        Tokens of each sequence.
    counts : ndarray of int32, shape (documents,)
        Sequences of each document.
    item_size, limit : int
        Bytes per token, and bytes that a `.bin` may have.
    """
    sums = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])  # up to each sequence
    tokens = np.diff(sums[np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])])
    end = at.first + at.size
    room = limit - end.tokens * item_size
    cuts = np.cumsum([0, *cut_at_documents(tokens * item_size, room, limit)])
    found = []
    for index, (begin, last) in enumerate(itertools.pairwise(cuts)):
        size = Counts(
            int(last - begin), int(counts[begin:last].sum()), int(tokens[begin:last].sum())
        )
        found.append(Segment(at.shard + index, end if index == 0 else Counts(), size))
    return [segment for segment in found if segment.size.documents]


def owners_of(costs: Sequence[float], begun: int, ranks: int) -> list[int]:
    """Return the rank of each piece; those not yet done are balanced by their costs.

    Parameters
    ----------
    costs : sequence of float
        Costs of all pieces.
    begun : int
        The first piece of this run.
    ranks : int
        Number of ranks.
    """
    owners = [piece % ranks for piece in range(len(costs))]
    for rank, share in enumerate(balance(costs[begun:], ranks)):
        for place in share:
            owners[begun + place] = rank
    return owners


def reader_of(owner: int, ranks: int) -> int:
    """Return the rank that reads back what another has written."""
    return (owner + 1) % ranks
