"""One rank's rows of a sample index that all ranks cut together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distcache.build.data_file import ArrayWriter, DataFile
from distcache.build.rows import RowCutter
from distcache.plan.costs import CHUNK_BYTES
from distcache.plan.layout import STRIPE, ArrayPlace
from distcache.plan.model import SectionPlan
from distcache.plan.slices import edges
from distcache.ranks.communicator import Communicator, Message

__all__ = ["RowSlice"]


class RowSlice:
    """Cuts and writes this rank's rows, in the order `feed`, `finish`, `settle`, `write_tail`.

    Rows seldom end with a stripe. Those that lie in a stripe which another rank begins are kept,
    and sent to it at last.

    Parameters
    ----------
    communicator : Communicator
        Of all ranks.
    section : SectionPlan
        The section.
    bounds : sequence of int, length ranks + 1
        The rows of each rank.
    start : (int, int)
        The position of the first entry that will be fed, and the tokens before it.
    file : DataFile
        The unfinished cache.
    place : ArrayPlace
        Of the sample index.
    """

    def __init__(
        self,
        communicator: Communicator,
        section: SectionPlan,
        bounds: Sequence[int],
        start: tuple[int, int],
        file: DataFile,
        place: ArrayPlace,
    ) -> None:
        self._communicator = communicator
        row_size = 2 * np.dtype(section.sample_type).itemsize
        self._edges = edges([row * row_size for row in bounds], STRIPE)
        rank = communicator.rank
        begin, end = bounds[rank], bounds[rank + 1]
        heads = [edge.end // row_size for edge in self._edges if edge.sender == rank]
        own = max(heads, default=begin)
        self._head = self._tail = np.empty(0, np.uint8)
        self._writer = ArrayWriter(file, place, own * row_size)
        room = CHUNK_BYTES // row_size
        self._cutters = (
            RowCutter(section, (begin, own), start, own - begin, self._keep_head),
            RowCutter(section, (own, end), start, room, self._write),
        )

    def feed(self, entries: NDArray[np.int64], begin: int) -> None:
        """Cut the rows whose tokens lie in entries; `begin` is the position of the first."""
        for cutter in self._cutters:
            cutter.feed(entries, begin)

    def finish(self) -> None:
        """Add the rows that are beyond the last token."""
        for cutter in self._cutters:
            cutter.finish()

    def settle(self) -> None:
        """Exchange the rows in stripes that other ranks begin. Collective."""
        rank = self._communicator.rank
        sends = [Message(edge.owner, self._head) for edge in self._edges if edge.sender == rank]
        receives = [
            Message(edge.sender, np.empty(edge.end - edge.begin, np.uint8))
            for edge in self._edges
            if edge.owner == rank
        ]
        self._communicator.exchange(sends, receives, "edges of a sample index")
        self._tail = np.concatenate([self._tail, *(message.data for message in receives)])

    def write_tail(self) -> None:
        """Write what is left, once `settle` has brought the rows of others."""
        self._writer.append(self._tail)
        self._tail = self._tail[:0]

    def leaves(self) -> NDArray[np.uint64]:
        """Return the leaf digests of what this rank has written."""
        return self._writer.leaves()

    def _keep_head(self, rows: NDArray[Any]) -> None:
        self._head = rows.reshape(-1).view(np.uint8).copy()

    def _write(self, rows: NDArray[Any]) -> None:
        if rows.nbytes % STRIPE:
            self._tail = rows.reshape(-1).view(np.uint8).copy()
        else:
            self._writer.append(rows)
