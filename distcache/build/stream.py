"""A document index on its way from the ranks that shuffle it to all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from distcache.build.entries import Entries
from distcache.plan.slices import overlaps, windows
from distcache.ranks.agreement import together
from distcache.ranks.communicator import Communicator, Message

__all__ = ["EntryStream"]


class EntryStream:
    """Gives every rank its slice of a document index, in steps that all ranks take together.

    Parameters
    ----------
    communicator : Communicator
        Of all ranks.
    holders : sequence of (int, int, int)
        The rank that holds each part, and the part's positions [begin, end); ascending.
    held : mapping of int to Entries
        The parts that this rank holds, by their place in `holders`.
    bounds : sequence of int, length ranks + 1
        Rank r takes positions [bounds[r], bounds[r + 1]).
    step : int
        Entries that a rank takes at a time.
    """

    def __init__(
        self,
        communicator: Communicator,
        holders: Sequence[tuple[int, int, int]],
        held: Mapping[int, Entries],
        bounds: Sequence[int],
        step: int,
    ) -> None:
        self._communicator = communicator
        self._holders = holders
        self._held = held
        self._bounds = bounds
        self._step = step

    def first_tokens(self, total: int) -> list[int]:
        """Return the tokens before each rank's slice. Collective.

        Parameters
        ----------
        total : int
            The tokens of the whole document index. Counting back from them spares the sum over
            the first slice, which costs most: it has to be gathered.
        """

        def add_up() -> list[int]:
            sums = [0] * self._communicator.size
            for entries in self._held.values():
                for rank, begin, end in overlaps(self._bounds, entries.begin, entries.end):
                    if rank > 0:
                        sums[rank] += entries.tokens(begin, end, self._step)
            return sums

        mine = together(self._communicator, add_up, "summing lengths")
        shares = self._communicator.gather_all(mine, list[int], "sums of lengths")
        sums = [sum(column) for column in zip(*shares, strict=True)]
        return [0, *(total - sum(sums[rank:]) for rank in range(1, len(sums)))]

    def __iter__(self) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield the position of this rank's next entries, and the entries. Collective.

        Ranks with shorter slices are given nothing in the last steps.
        """
        for chunk in windows(self._bounds, self._step):
            yield chunk[self._communicator.rank][0], self._take(chunk)
            for entries in self._held.values():
                for begin, end in chunk:
                    entries.release(begin, end)

    def _take(self, chunk: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
        me = self._communicator.rank
        sends, receives, own = [], [], []
        for part, (holder, part_begin, part_end) in enumerate(self._holders):
            for taker, (begin, end) in enumerate(chunk):
                first, last = max(begin, part_begin), min(end, part_end)
                if first >= last or me not in (holder, taker):
                    continue
                if holder == me:
                    piece = self._held[part].read(first, last)
                    if taker != me:
                        sends.append(Message(taker, piece))
                else:
                    piece = np.empty(last - first, np.int64)
                    receives.append(Message(holder, piece))
                if taker == me:
                    own.append(piece)
        self._communicator.exchange(sends, receives, "a document index")
        return own[0] if len(own) == 1 else np.concatenate([np.empty(0, np.int64), *own])
