"""How ranks divide a section: which positions they draw, which rows they cut and write."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence

import msgspec

from distcache.plan.model import SectionPlan


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
