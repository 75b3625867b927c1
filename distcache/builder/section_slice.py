"""A slice of a section: rows of a sample index, from the lengths of its documents."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from distcache.builder.arrays import ArrayWriter, LargeArray
from distcache.cache.digests import joined_digest
from distcache.corpus import Idx
from distcache.kernels import TOO_LONG, Cursor, emit_boundaries, look_up_lengths
from distcache.plan.layout import ArrayPlace
from distcache.plan.memory import CHUNK_BYTES, DOCUMENT_BYTES
from distcache.plan.model import STRIPE, SectionPlan
from distcache.ranks.agreement import on_all_ranks
from distcache.ranks.communicator import Communicator, Message
from distcache.storage.unfinished_file import UnfinishedFile

NARROW_STEP: Final = 1 << 18  # lengths that are brought into a table at a time


class Edge(msgspec.Struct, frozen=True):
    """Bytes [begin, end) of an array that `sender` has and `owner` writes."""

    sender: int
    owner: int
    begin: int
    end: int


def draw_bounds(size: int, ranks: int) -> list[int]:
    """Distribute the positions of a shuffle, so that positions and draws are balanced.

    Position t is drawn by the steps from t on, step i with a chance of 1 / (i + 1): all below t
    together are drawn about t (1 + ln(size / t)) times. The sum of positions and of draws is the
    same for all ranks, and so neither is more than twice the mean.

    Parameters
    ----------
    size, ranks : int
        Number of positions, and of ranks.

    Returns
    -------
    list of int
        ranks + 1 bounds, from 0 to size.
    """

    def cost_below(position: int) -> float:
        return position * (2 + math.log(size / position)) if position else 0.0

    shares = (2 * size * rank / ranks for rank in range(1, ranks))
    bounds = [bisect.bisect_left(range(size), share, key=cost_below) for share in shares]
    return [0, *bounds, size]


def row_bounds(firsts: Sequence[int], section: SectionPlan) -> list[int]:
    """Return which rows of the sample index each rank emits.

    Row s (from 1 on) belongs to the slice that holds token s x L - 1 + extra; row 0 and rows whose
    token is beyond the last belong to the first and to the last slice.

    Parameters
    ----------
    firsts : sequence of int
        Tokens before each rank's slice.
    section : SectionPlan
        The section.

    Returns
    -------
    list of int
        ranks + 1 bounds, from 0 to samples + 1.
    """
    length, extra = section.cut.sequence_length, int(section.cut.extra_token)
    rows = section.size.samples + 1
    # The first s with s x L - 1 + extra >= first, but never row 0.
    starts = [min(max(-(-(first + 1 - extra) // length), 1), rows) for first in firsts]
    return [0, *starts[1:], rows]


def windows(bounds: Sequence[int], step: int) -> Iterator[list[tuple[int, int]]]:
    """Yield, step by step, the part of its slice that each rank takes.

    Parameters
    ----------
    bounds : sequence of int, length ranks + 1
        Rank r has [bounds[r], bounds[r + 1]).
    step : int
        The most that a rank takes at a time.

    Yields
    ------
    list of (int, int)
        Begin and end for each rank; empty for ranks that have their whole slice.
    """
    slices = list(itertools.pairwise(bounds))
    for taken in range(0, max(end - begin for begin, end in slices), step):
        yield [(min(begin + taken, end), min(begin + taken + step, end)) for begin, end in slices]


def edges(bounds: Sequence[int], stripe: int) -> list[Edge]:
    """Return the leading bytes of each rank that fall into a stripe owned by another rank.

    Parameters
    ----------
    bounds : sequence of int, length ranks + 1
        Rank r has bytes [bounds[r], bounds[r + 1]).
    stripe : int
        Size of a stripe in bytes; the rank that has a stripe's first byte owns it.

    Returns
    -------
    list of Edge
        Ascending; a rank's pieces continue what it has itself without a gap.
    """
    found = []
    owner = 0
    for rank in range(len(bounds) - 1):
        begin, end = bounds[rank], bounds[rank + 1]
        if begin == end:
            continue
        head_end = min(-(-begin // stripe) * stripe, end)
        if begin < head_end:
            found.append(Edge(rank, owner, begin, head_end))
        if head_end < end or begin == head_end:
            owner = rank
    return found


class ArraySlice:
    """Writes a slice of an array from pieces of any size.

    Slices seldom end with a stripe: what is in a stripe that another rank begins is kept, and sent
    to it, so that no two ranks write into the same stripe.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks.
    place : ArrayPlace
        Place of the array in the file.
    file : UnfinishedFile
        The unfinished cache.
    bounds : sequence of int, length ranks + 1
        Rank r has the bytes [bounds[r], bounds[r + 1]) of the array.
    """

    def __init__(
        self,
        communicator: Communicator,
        place: ArrayPlace,
        file: UnfinishedFile,
        bounds: Sequence[int],
    ) -> None:
        self._communicator = communicator
        self._name = place.name.replace("_", " ")
        self._edges = edges(bounds, STRIPE)
        begin = bounds[communicator.rank]
        own = [edge.end for edge in self._edges if edge.sender == communicator.rank]
        head_end = max(own, default=begin)
        self._head = np.empty(head_end - begin, np.uint8)
        self._filled = 0
        self._writer = ArrayWriter(file, place, head_end)

    def append(self, piece: NDArray[Any]) -> None:
        """Append the next piece of the slice, contiguous, which is not kept."""
        flat = piece.reshape(-1).view(np.uint8)
        count = min(len(self._head) - self._filled, flat.size)
        self._head[self._filled : self._filled + count] = flat[:count]
        self._filled += count
        self._writer.append(flat[count:])

    def finish(self) -> bytes:
        """Exchange what lies in the stripes of other ranks, and write the rest. Collective.

        Returns
        -------
        bytes
            The leaf digests of what this rank has written.
        """
        rank = self._communicator.rank
        sends = [Message(edge.owner, self._head) for edge in self._edges if edge.sender == rank]
        receives = [
            Message(edge.sender, np.empty(edge.end - edge.begin, np.uint8))
            for edge in self._edges
            if edge.owner == rank
        ]
        self._communicator.exchange(sends, receives, f"edges of a {self._name}")

        def write_rest() -> bytes:
            for message in receives:
                self._writer.append(message.data)
            return self._writer.leaves().tobytes()

        return on_all_ranks(self._communicator, write_rest, f"writing a {self._name}")


class LengthTable:
    """The lengths of a range of a corpus's sequences, to be looked up in any order.

    It has 16 bits for each, since a look-up is a cache miss. Longer sequences are looked up in the
    index, whose pages are released again.

    Parameters
    ----------
    idx : Idx
        Index of the corpus.
    begin, end : int
        The range.
    """

    def __init__(self, idx: Idx, begin: int, end: int) -> None:
        self._idx = idx
        self._begin, self._end = begin, end
        self._narrow = LargeArray(end - begin, np.uint16).values
        self._has_long = False
        for first in range(begin, end, NARROW_STEP):
            last = min(first + NARROW_STEP, end)
            narrow = self._narrow[first - begin : last - begin]
            narrow[:] = np.minimum(idx.lengths[first:last], TOO_LONG)
            self._has_long |= bool(narrow.max() == TOO_LONG)
            idx.release_lengths(first, last)  # mapped lengths count as memory of the process

    def look_up(self, sequences: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the lengths of sequences in tokens."""
        lengths = np.empty(sequences.shape, np.int32)
        look_up_lengths(self._narrow, self._idx.lengths, self._begin, sequences, lengths)
        if self._has_long:
            self._idx.release_lengths(self._begin, self._end)
        return lengths


class RowCutter:
    """Cuts consecutive rows from the lengths of documents, which are fed to it in order.

    Row 0 is (0, 0). Rows whose token is beyond the last end with the last document: a partial
    sample that is kept.

    Parameters
    ----------
    section : SectionPlan
        The section.
    rows : (int, int)
        The first row, and the one after the last.
    start : (int, int)
        The position of the first document that will be fed, and the tokens before it.
    room : int
        Rows in the buffer.
    sink : callable
        Takes the rows, int32 or int64 of shape (at most room, 2). It must not keep them.
    """

    def __init__(
        self,
        section: SectionPlan,
        rows: tuple[int, int],
        start: tuple[int, int],
        room: int,
        sink: Callable[[NDArray[Any]], None],
    ) -> None:
        self._section = section
        self._left = rows[1] - rows[0]
        self._cursor = Cursor(*start, max(rows[0], 1))
        self._held = np.empty((min(room, self._left), 2), section.sample_type)
        self._count = 0
        self._sink = sink
        self._last_length = 0
        if rows[0] == 0 and self._left:
            self._held[0] = 0
            self._count = 1

    def feed(self, lengths: NDArray[np.int32], begin: int) -> None:
        """Cut the rows whose tokens are in documents; `begin` is the position of the first."""
        if lengths.size:
            self._last_length = int(lengths[-1])
        while self._left:
            room = min(self._left, len(self._held))
            self._count += emit_boundaries(
                lengths,
                begin,
                self._section.cut.sequence_length,
                self._section.cut.extra_token,
                self._cursor,
                self._held[self._count : room],
            )
            if self._count < room:
                return
            self._pass_on()

    def finish(self) -> None:
        """Add the rows that are beyond the last token, and pass on what is held."""
        offset = self._last_length - int(self._section.cut.extra_token)
        while self._left:
            room = min(self._left, len(self._held))
            self._held[self._count : room] = (self._section.documents - 1, offset)
            self._count = room
            self._pass_on()

    def _pass_on(self) -> None:
        self._sink(self._held[: self._count])
        self._left -= self._count
        self._count = 0


class SectionSlice:
    """A rank's slice of a section that all ranks cut and write together.

    The slice of the document index is fed in order by `feed`; then comes `finish`.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks.
    section : SectionPlan
        The section.
    places : dict of str to ArrayPlace
        Place of each array in the file.
    file : UnfinishedFile
        The unfinished cache.
    bounds, firsts : sequence of int, length ranks + 1 and ranks
        The positions in the document index that each rank takes, and the tokens before them.
    """

    def __init__(
        self,
        communicator: Communicator,
        section: SectionPlan,
        places: dict[str, ArrayPlace],
        file: UnfinishedFile,
        bounds: Sequence[int],
        firsts: Sequence[int],
    ) -> None:
        self._communicator = communicator
        rank = communicator.rank
        row_size = 2 * np.dtype(section.sample_type).itemsize
        rows = row_bounds(firsts, section)
        ends = [row * row_size for row in rows]
        self._documents = ArrayWriter(file, places["document_index"], DOCUMENT_BYTES * bounds[rank])
        self._rows = ArraySlice(communicator, places["sample_index"], file, ends)
        room, start = CHUNK_BYTES // row_size, (bounds[rank], firsts[rank])
        own = (rows[rank], rows[rank + 1])
        self._cutter = RowCutter(section, own, start, room, self._rows.append)

    def feed(self, begin: int, documents: NDArray[np.int32], lengths: NDArray[np.int32]) -> None:
        """Write documents, and cut the rows whose tokens are in them.

        Parameters
        ----------
        begin : int
            Position of the first document.
        documents, lengths : ndarray of int32
            Next documents of the slice, and their lengths in tokens.
        """
        self._documents.append(documents)
        self._cutter.feed(lengths, begin)

    def finish(self) -> dict[str, bytes]:
        """Add the rows beyond the last token, and write what other ranks have cut. Collective.

        Returns
        -------
        dict of str to bytes
            The leaf digests of this rank's slice of the two indices.
        """
        on_all_ranks(self._communicator, self._cutter.finish, "cutting samples")
        return {
            "document_index": self._documents.leaves().tobytes(),
            "sample_index": self._rows.finish(),
        }


def joined_digests(communicator: Communicator, mine: dict[str, bytes]) -> dict[str, str]:
    """Return the digests of arrays of which each rank has written a slice. Collective.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks.
    mine : dict of str to bytes
        The leaf digests of this rank's slice of each array.
    """
    shares = communicator.allgather(mine, dict[str, bytes], "digests of slices")
    return {name: joined_digest(share[name] for share in shares) for name in mine}
