"""One shuffle, computed by all ranks; none needs memory for all of it.

Every rank goes through all draws, and links the steps that have drawn its own positions
(`distcache.kernels.link_steps`). The links of a position lead from one step to another until there
is none: ranks ask one another for the next link, or for the last one where it is known, until all
of theirs are. Half of the positions have no link at all, and the others one more with half of the
chance each time, so that a few rounds are enough. Then every step knows the value that it
leaves, and sends it to whoever wants that position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distcache.build.delivery import Delivery
from distcache.kernels import NO_LINK, Mt19937, draws_within, link_steps
from distcache.plan.slices import draw_bounds
from distcache.ranks.agreement import together
from distcache.ranks.communicator import Communicator

__all__ = ["shuffled_slice"]

PIECE: Final = 1 << 22  # steps that a rank looks at, or sends values of, at a time

Numbers = NDArray[np.uint32]


class _Steps(NamedTuple):
    """The steps that have drawn positions of this rank: their own, what they drew, their links."""

    steps: Numbers
    draws: Numbers
    links: Numbers


def shuffled_slice(
    communicator: Communicator, size: int, generator: Mt19937, bounds: Sequence[int]
) -> Numbers:
    """Return this rank's slice of the shuffled positions 0, 1, ..., size - 1. Collective.

    Parameters
    ----------
    communicator : Communicator
        Of all ranks.
    size : int
        Less than 2^32 - 1.
    generator : Mt19937
        The same on all ranks; left after the draws.
    bounds : sequence of int, length ranks + 1
        Rank r gets [bounds[r], bounds[r + 1]) of the result; from 0 to `size`.

    Returns
    -------
    ndarray of uint32, shape (bounds[rank + 1] - bounds[rank],)
        What a shuffle of ``arange(size)`` by this generator leaves there.
    """
    rank = communicator.rank
    # One rank's logarithms for all: others might round the last bit of theirs differently.
    owners: list[int] = communicator.broadcast(
        draw_bounds(size, communicator.size), list[int], "owners of positions"
    )
    begin, end = owners[rank], owners[rank + 1]
    found, latest = together(
        communicator, lambda: _link(size, generator, begin, end), "linking the steps of a shuffle"
    )
    last = _follow(communicator, owners, latest)
    del latest
    result = together(
        communicator,
        lambda: np.empty(bounds[rank + 1] - bounds[rank], np.uint32),
        "making room for a shuffle",
    )
    most = max(communicator.gather_all(len(found.steps), int, "steps of a shuffle"))
    for first in range(0, most, PIECE):
        piece = _Steps(*(column[first : first + PIECE] for column in found))
        values = _values(communicator, owners, last, piece)
        arriving = Delivery(communicator, bounds, piece.steps, "shuffled positions")
        places = arriving.forward(piece.steps)
        result[places - np.uint32(bounds[rank])] = arriving.forward(values)
    return result


def _link(size: int, generator: Mt19937, begin: int, end: int) -> tuple[_Steps, Numbers]:
    """Link the steps that draw positions [begin, end), and return the latest of each position."""
    latest = np.full(end - begin, NO_LINK, np.uint32)
    pieces = [_first_step(begin, end)]
    room = np.empty((2, min(PIECE, max(size - 1, 0))), np.uint32)
    for first in range(size - 1, 0, -PIECE):
        count = min(PIECE, first)
        found = draws_within(generator, first, begin, end, room[0, :count], room[1, :count])
        steps, draws = room[0, :found].copy(), room[1, :found].copy()
        links = np.empty(found, np.uint32)
        link_steps(steps, draws, begin, latest, links)
        pieces.append(_Steps(steps, draws, links))
    if pieces[0].steps.size:
        pieces[0].links[0] = latest[0]
    return _Steps(*map(np.concatenate, zip(*pieces, strict=True))), latest


def _first_step(begin: int, end: int) -> _Steps:
    """Return the step of position 0, which is not drawn: it takes what is there."""
    own = int(begin == 0 < end)
    return _Steps(*(np.zeros(own, np.uint32) for _ in _Steps._fields))


def _follow(communicator: Communicator, owners: Sequence[int], latest: Numbers) -> Numbers:
    """Return the last position that the links of each of this rank's lead to. Collective."""
    begin = owners[communicator.rank]
    is_last = latest == NO_LINK
    last = np.where(is_last, np.arange(begin, begin + len(latest), dtype=np.uint32), latest)
    left = np.flatnonzero(~is_last)
    while any(communicator.gather_all(len(left), int, "links of a shuffle")):
        asking = Delivery(communicator, owners, last[left], "links of a shuffle")
        asked = asking.forward(last[left]) - np.uint32(begin)
        nexts, ended = last[asked], is_last[asked]
        last[left] = asking.back(nexts)
        is_last[left] = asking.back(ended)
        left = left[~is_last[left]]
    return last


def _values(
    communicator: Communicator, owners: Sequence[int], last: Numbers, piece: _Steps
) -> Numbers:
    """Return the value that each step leaves at its own position. Collective."""
    linked = np.flatnonzero(piece.links != NO_LINK)
    links = piece.links[linked]
    asking = Delivery(communicator, owners, links, "values of a shuffle")
    asked = asking.forward(links) - np.uint32(owners[communicator.rank])
    values = piece.draws.copy()
    values[linked] = asking.back(last[asked])
    return values
