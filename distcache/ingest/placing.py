"""Where the documents of tasks lie in the corpora: pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from distcache.ingest.part import PieceFacts
from distcache.ingest.pieces import cut_at_documents
from distcache.ranks.balance import balance

__all__ = [
    "Counts",
    "Segment",
    "TaskRecord",
    "overlap",
    "owners_of",
    "place",
    "reader_of",
    "segments_of",
]


class Counts(msgspec.Struct, frozen=True, array_like=True):
    """How many of each, or a position before which there are as many."""

    documents: int = 0
    sequences: int = 0
    tokens: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.documents + other.documents,
            self.sequences + other.sequences,
            self.tokens + other.tokens,
        )

    def __sub__(self, other: Counts) -> Counts:
        return Counts(
            self.documents - other.documents,
            self.sequences - other.sequences,
            self.tokens - other.tokens,
        )


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """Documents of a task that are in one corpus.

    Attributes
    ----------
    shard : int
        Which corpus.
    first : Counts
        What lies before them in it.
    size : Counts
        How many they are.
    """

    shard: int
    first: Counts
    size: Counts


class TaskRecord(msgspec.Struct, frozen=True):
    """A task that is done.

    Attributes
    ----------
    task : int
        Which one.
    pieces : list of PieceFacts
        Of its pieces.
    digest : str
        Of what it wrote, as `Part.digest`.
    segments : list of Segment
        Where that lies.
    """

    task: int
    pieces: list[PieceFacts]
    digest: str
    segments: list[Segment]


def place(at: Segment, size: Counts, item_size: int, limit: int | None) -> Segment | None:
    """Return where the documents of a task go, or None if they must be cut.

    Parameters
    ----------
    at : Segment
        The last one; what comes next follows it.
    size : Counts
        Of the task.
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
    """Cut the documents of a task where a corpus would grow beyond the limit.

    Parameters
    ----------
    at : Segment
        The last one; what comes next follows it.
    lengths : ndarray of int32, shape (sequences,)
        Tokens of each sequence.
    counts : ndarray of int32, shape (documents,)
        Sequences of each document, at least one.
    item_size, limit : int
        Bytes per token, and bytes that a `.bin` may have.
    """
    firsts = np.cumsum(counts, dtype=np.int64) - counts
    tokens = np.add.reduceat(lengths, firsts, dtype=np.int64) if len(counts) else firsts
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
    """Return the rank of each task: those still to be done are shared out by what they take.

    Parameters
    ----------
    costs : sequence of float
        Of all tasks.
    begun : int
        The first task of this run.
    ranks : int
        How many there are.
    """
    owners = [task % ranks for task in range(len(costs))]
    for rank, share in enumerate(balance(costs[begun:], ranks)):
        for place in share:
            owners[begun + place] = rank
    return owners


def reader_of(owner: int, ranks: int) -> int:
    """Return the rank that reads back what one has written: not that one itself."""
    return (owner + 1) % ranks


def overlap(
    pieces: Sequence[Counts], segments: Sequence[Segment]
) -> Iterator[tuple[int, int, Counts, Counts, Counts]]:
    """Share out the pieces of a task over its segments, which have as much in all.

    Yields
    ------
    piece : int
        Which one.
    segment : int
        Which one has a part of it; a piece without documents goes where it stands.
    at : Counts
        Of the segment, before the piece.
    before : Counts
        Of the piece, in earlier segments.
    size : Counts
        Of the piece, in this one.
    """
    segment, used = 0, Counts()
    for index, piece in enumerate(pieces):
        before = Counts()
        while True:
            room = segments[segment].size - used if segments else Counts()
            rest = piece - before
            fits = rest.documents <= room.documents or segment >= len(segments) - 1
            size = rest if fits else room
            if size.documents or fits:
                yield index, segment, used, before, size
            before, used = before + size, used + size
            if fits:
                break
            segment, used = segment + 1, Counts()
