"""Which pieces of sequences are left after training: pure functions.

A token of a section is left as often as it has been an input less often than all shall be. Pieces
are runs of tokens that are left together; those that are left more than once come again, after all
that are left once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distcache.corpus.idx import Idx
from distcache.kernels import Section, find_visits

BLOCK_SEQUENCES: Final = 1 << 20  # sequences
# Of the pieces of a block in memory, which are read once for each time that tokens are left.
KEPT_TYPES: Final = (np.int32, np.int32, np.int32, np.uint32)


class Visits(NamedTuple):
    """How often the tokens of sequences were inputs.

    Attributes
    ----------
    whole : ndarray of uint16, shape (sequences,)
        Visits of whole sequences.
    sequences : ndarray of int64, shape (parts,)
        Sequences of further visits of parts, ascending.
    begins, ends : ndarray of int32, shape (parts,)
        Ranges of tokens of these.
    times : ndarray of uint16, shape (parts,)
        Numbers of these visits.
    """

    whole: NDArray[np.uint16]
    sequences: NDArray[np.int64]
    begins: NDArray[np.int32]
    ends: NDArray[np.int32]
    times: NDArray[np.uint16]

    def between(self, begin: int, end: int) -> Visits:
        """Return the visits of sequences [begin, end), counted from the first of them."""
        parts = slice(*np.searchsorted(self.sequences, (begin, end)).tolist())
        return Visits(
            self.whole[begin:end],
            self.sequences[parts] - begin,
            self.begins[parts],
            self.ends[parts],
            self.times[parts],
        )


def visits_of(sections: list[tuple[Section, NDArray[np.uint16]]], first: int, count: int) -> Visits:
    """Return how often the sequences of a corpus were visited, by the rows of sections of it.

    Parameters
    ----------
    sections : list of (Section, ndarray of uint16)
        Sections, and the visits of their rows.
    first : int
        First sequence of their range.
    count : int
        Sequences of it.

    Raises
    ------
    IndexError
        If arrays lead outside of one another.
    """
    whole = np.zeros(count, np.uint16)
    found = [find_visits(section, rows, first, whole) for section, rows in sections]
    sequences, begins, ends, times = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order = np.argsort(sequences, kind="stable")
    return Visits(whole, sequences[order], begins[order], ends[order], times[order])


def visits_in_root(visits: Visits, view: Idx, first: int, root: Idx) -> Visits:
    """Return the visits of a view as those of the corpus into which it points.

    Parameters
    ----------
    visits : Visits
        Visits of the view's sequences from `first` on.
    view, root : Idx
        Indices of the view and of the corpus.
    first : int
        First sequence of the view's range.

    Raises
    ------
    IndexError
        If a sequence of the view is no part of one of the corpus.
    """
    seen = np.flatnonzero(visits.whole)
    lengths = view.lengths[first : first + len(visits.whole)].astype(np.int64)
    zero = np.zeros(len(seen), np.int64)
    sequences = np.concatenate([seen, visits.sequences])
    begins = np.concatenate([zero, visits.begins])
    ends = np.concatenate([lengths[seen], visits.ends])
    times = np.concatenate([visits.whole[seen], visits.times])
    offsets = view.offsets[first + sequences] // view.item_size + begins
    starts = root.offsets // root.item_size
    numbers = np.searchsorted(starts, offsets, "right") - 1
    begins, ends = offsets - starts[numbers], offsets - starts[numbers] + ends - begins
    if len(numbers) and (numbers.min() < 0 or (ends > root.lengths[numbers]).any()):
        raise IndexError("a sequence of a view is no part of a sequence of its corpus")
    order = np.argsort(numbers, kind="stable")
    whole = np.zeros(len(root.lengths), np.uint16)
    parts = (begins[order].astype(np.int32), ends[order].astype(np.int32), times[order])
    return Visits(whole, numbers[order], *parts)


def added(one: Visits, other: Visits) -> Visits:
    """Return the visits of the same sequences together."""
    whole = one.whole.astype(np.uint32) + other.whole
    if int(whole.max(initial=0)) > np.iinfo(np.uint16).max:
        raise OverflowError
    sequences = np.concatenate([one.sequences, other.sequences])
    order = np.argsort(sequences, kind="stable")
    return Visits(
        whole.astype(np.uint16),
        sequences[order],
        np.concatenate([one.begins, other.begins])[order],
        np.concatenate([one.ends, other.ends])[order],
        np.concatenate([one.times, other.times])[order],
    )


class Pieces(NamedTuple):
    """Pieces of sequences, in their order.

    Attributes
    ----------
    sequences : ndarray of int64, shape (pieces,)
        Sequence of each.
    begins, ends : ndarray of int64, shape (pieces,)
        Range of its tokens.
    times : ndarray of int64, shape (pieces,)
        Number of times that each was an input, or that it is left.
    """

    sequences: NDArray[np.int64]
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    times: NDArray[np.int64]


def covered(visits: Visits, lengths: NDArray[np.int64]) -> Pieces:
    """Return the sequences cut where the number of visits changes, with that number.

    Parameters
    ----------
    visits : Visits
        Visits of the sequences.
    lengths : ndarray of int64, shape (sequences,)
        Tokens of each; those without any are left out.
    """
    cut = np.zeros(len(lengths), bool)
    cut[visits.sequences] = True
    plain = np.flatnonzero(~cut & (lengths > 0))
    whole = Pieces(
        plain, np.zeros(len(plain), np.int64), lengths[plain], visits.whole[plain].astype(np.int64)
    )
    if not len(visits.sequences):
        return whole
    pieces = _cut(visits, np.flatnonzero(cut), lengths)
    joined = [np.concatenate(pair) for pair in zip(whole, pieces, strict=True)]
    order = np.argsort((joined[0] << 32) | joined[1], kind="stable")  # two runs: merged
    return Pieces(*(values[order] for values in joined))


def _cut(visits: Visits, numbers: NDArray[np.int64], lengths: NDArray[np.int64]) -> Pieces:
    """Return the pieces of the sequences of these numbers, which have visits of parts."""
    times = visits.times.astype(np.int64)
    zero = np.zeros(len(numbers), np.int64)
    sequences = np.concatenate([numbers, visits.sequences, visits.sequences, numbers])
    places = np.concatenate([zero, visits.begins, visits.ends, lengths[numbers]])
    changes = np.concatenate([visits.whole[numbers], times, -times, zero]).astype(np.int64)
    order = np.argsort((sequences << 32) | places, kind="stable")
    sequences, places, changes = sequences[order], places[order], changes[order]
    sums = np.cumsum(changes)
    # Sums run through all sequences: those before a sequence are taken off.
    firsts = np.flatnonzero(np.diff(sequences, prepend=-1))
    before = np.repeat(sums[firsts] - changes[firsts], np.diff(np.append(firsts, len(sequences))))
    same = np.append(sequences[1:] == sequences[:-1], False)
    ends = np.append(places[1:], 0)
    kept = same & (ends > places)
    return Pieces(sequences[kept], places[kept], ends[kept], (sums - before)[kept])


def runs_left(pieces: Pieces, level: int) -> Pieces:
    """Return the runs of tokens that are left at least so often.

    Parameters
    ----------
    pieces : Pieces
        Pieces of all tokens, with how often they are left.
    level : int
        Number of times that they are left, at least.
    """
    chosen = pieces.times >= level
    sequences, begins, ends = (values[chosen] for values in pieces[:3])
    if not len(sequences):
        return Pieces(sequences, begins, ends, sequences)
    joins = np.append(False, (sequences[1:] == sequences[:-1]) & (begins[1:] == ends[:-1]))
    firsts = np.flatnonzero(~joins)
    lasts = np.append(firsts[1:], len(sequences)) - 1
    return Pieces(
        sequences[firsts],
        begins[firsts],
        ends[lasts],
        np.full(len(firsts), level, np.int64),
    )


class LeftCounts(NamedTuple):
    """Numbers of the pieces that are left, and of those that are whole sequences."""

    pieces: int
    tokens: int
    whole: int
    whole_tokens: int


def _covered_block(visits: Visits, lengths: NDArray[np.int32], begin: int) -> Pieces:
    """Return the pieces of a block of sequences, counted from its first one."""
    end = min(begin + BLOCK_SEQUENCES, len(lengths))
    return covered(visits.between(begin, end), lengths[begin:end].astype(np.int64))


class Cover:
    """How often each token of the sequences of a section was an input.

    Parameters
    ----------
    visits : Visits
        Visits of the sequences.
    lengths : ndarray of int32, shape (sequences,)
        Tokens of each.

    Attributes
    ----------
    most : int
        Greatest number of times that a token was an input.
    """

    def __init__(self, visits: Visits, lengths: NDArray[np.int32]) -> None:
        self._lengths = lengths
        blocks = (
            _covered_block(visits, lengths, begin)
            for begin in range(0, len(lengths), BLOCK_SEQUENCES)
        )
        self._kept: list[list[NDArray[Any]]] = [
            [values.astype(kind) for values, kind in zip(some, KEPT_TYPES, strict=True)]
            for some in blocks
        ]
        self.most = max((int(times.max(initial=0)) for *_, times in self._kept), default=0)

    def left(self, wanted: int, *, fragments: bool) -> Iterator[Pieces]:
        """Yield the pieces that are left, in the order of a view.

        Parameters
        ----------
        wanted : int
            Number of times that each token shall be an input in all, at least `most`.
        fragments : bool
            Whether pieces are kept that are no whole sequences.
        """
        level, more = 1, True
        while more:
            more = False
            for pieces in self.pieces():
                remaining = pieces._replace(times=wanted - pieces.times)
                more |= bool((remaining.times > level).any())
                runs = runs_left(remaining, level)
                if not fragments:
                    whole = self._are_whole(runs)
                    runs = Pieces(*(values[whole] for values in runs))
                yield runs
            level += 1

    def count_left(self, wanted: int) -> LeftCounts:
        """Return the numbers of what is left, as `left` yields it."""
        found = np.zeros(4, np.int64)
        for pieces in self.left(wanted, fragments=True):
            tokens, whole = pieces.ends - pieces.begins, self._are_whole(pieces)
            found += (len(tokens), tokens.sum(), whole.sum(), tokens[whole].sum())
        return LeftCounts(*found.tolist())

    def pieces(self) -> Iterator[Pieces]:
        """Yield the pieces of successive sequences, with how often they were inputs."""
        for number, pieces in enumerate(self._kept):
            wide = Pieces(*(values.astype(np.int64) for values in pieces))
            yield wide._replace(sequences=wide.sequences + number * BLOCK_SEQUENCES)

    def _are_whole(self, pieces: Pieces) -> NDArray[np.bool_]:
        whole: NDArray[np.bool_] = (pieces.begins == 0) & (
            pieces.ends == self._lengths[pieces.sequences]
        )
        return whole
