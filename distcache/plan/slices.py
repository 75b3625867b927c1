"""How a section is cut: which worker shuffles what, who cuts which rows, who writes them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from distcache.plan.model import NARROW, SectionPlan

__all__ = [
    "Edge",
    "draw_bounds",
    "edges",
    "lower_type",
    "middle_of",
    "overlaps",
    "row_bounds",
    "windows",
]


class Edge(msgspec.Struct, frozen=True):
    """Bytes [begin, end) of an array that `sender` has and `owner` writes."""

    sender: int
    owner: int
    begin: int
    end: int


def middle_of(section: SectionPlan, workers: int) -> int:
    """Return the position below which the second of two workers shuffles; 0 if there is one.

    The second also shuffles the last epoch and the samples, so that both have as many steps.
    """
    if workers < 2:
        return 0
    steps = section.documents + section.shuffled_samples
    return max(section.first_documents - steps // 2, 0)


def draw_bounds(size: int, ranks: int) -> list[int]:
    """Share out the positions of a shuffle, so that ranks have as many positions and draws.

    Position t is drawn by the steps from t on, step i with a chance of 1 / (i + 1): all below t
    together are drawn about t (1 + ln(size / t)) times. The sum of positions and of draws is the
    same for all ranks, and so neither is more than twice the mean.

    Parameters
    ----------
    size, ranks : int
        How many positions, and ranks.

    Returns
    -------
    list of int
        ranks + 1 bounds, from 0 to size.
    """
    bounds = [0]
    for rank in range(1, ranks):
        low, high = bounds[-1], size
        while low < high:
            middle = (low + high) // 2
            below = middle * (2 + math.log(size / middle)) if middle else 0.0
            low, high = (middle + 1, high) if below < 2 * size * rank / ranks else (low, middle)
        bounds.append(low)
    return [*bounds, size]


def lower_type(middle: int) -> np.dtype[np.int32] | np.dtype[np.int64]:
    """Return the dtype of positions below a middle."""
    return np.dtype(np.int32) if middle <= NARROW else np.dtype(np.int64)


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


def overlaps(bounds: Sequence[int], begin: int, end: int) -> list[tuple[int, int, int]]:
    """Return which ranks take part of [begin, end), and which part.

    Parameters
    ----------
    bounds : sequence of int, length ranks + 1
        Rank r has [bounds[r], bounds[r + 1]).
    begin, end : int
        The range to share out.

    Returns
    -------
    list of (int, int, int)
        Rank, begin and end of its part, which is not empty; ascending.
    """
    parts = (
        (rank, max(first, begin), min(last, end))
        for rank, (first, last) in enumerate(itertools.pairwise(bounds))
    )
    return [(rank, first, last) for rank, first, last in parts if first < last]


def windows(bounds: Sequence[int], step: int) -> Iterator[list[tuple[int, int]]]:
    """Yield the part of its slice that each rank takes in one step after the other.

    Parameters
    ----------
    bounds : sequence of int, length ranks + 1
        Rank r has [bounds[r], bounds[r + 1]).
    step : int
        The most that a rank takes at a time.

    Yields
    ------
    list of (int, int)
        Begin and end for each rank; nothing for those that have taken their slice.
    """
    slices = list(itertools.pairwise(bounds))
    for taken in range(0, max(end - begin for begin, end in slices), step):
        yield [(min(begin + taken, end), min(begin + taken + step, end)) for begin, end in slices]


def edges(bounds: Sequence[int], stripe: int) -> list[Edge]:
    """Return the heads of ranks' bytes that lie in a stripe which another rank begins.

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
