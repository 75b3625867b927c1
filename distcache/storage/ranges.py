"""Which bytes of objects a request asks for: close ranges together, large ones in pieces; pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

GAP: Final = 512  # bytes between two ranges that cost less than a request
PIECE: Final = 8 << 20  # bytes of an object that are requested at a time


class Joined(NamedTuple):
    """Bytes [begin, end), and which of the ranges are in them, by their places."""

    begin: int
    end: int
    members: list[int]


def join_ranges(ranges: Sequence[tuple[int, int]], gap: int, most: int) -> list[Joined]:
    """Join ranges (first byte, bytes) of one object.

    Parameters
    ----------
    ranges : sequence of (int, int)
        Ranges in any order; they may overlap. Empty ones are left out.
    gap : int
        Bytes between two ranges that cost less than a request.
    most : int
        Bytes of a request, unless one range alone has more.

    Returns
    -------
    list of Joined
        Joined ranges in ascending order; each range is in exactly one.
    """
    found: list[Joined] = []
    for place in sorted(range(len(ranges)), key=ranges.__getitem__):
        begin, size = ranges[place]
        if not size:
            continue
        if found:
            last = found[-1]
            end = max(last.end, begin + size)
            if begin <= last.end + gap and end - last.begin <= most:
                found[-1] = Joined(last.begin, end, [*last.members, place])
                continue
        found.append(Joined(begin, begin + size, [place]))
    return found
