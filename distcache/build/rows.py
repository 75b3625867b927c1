"""Cut samples: the rows of a sample index, from the entries of a document index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distcache.build.entries import tokens_of
from distcache.kernels import Cursor, emit_boundaries
from distcache.plan.model import SectionPlan

__all__ = ["RowCutter"]


class RowCutter:
    """Cuts consecutive rows from entries that are fed to it in order.

    Row 0 is (0, 0). Rows whose token is beyond the last end with the last document: a partial
    sample that is kept.

    Parameters
    ----------
    section : SectionPlan
        The section.
    rows : (int, int)
        The first row, and the one after the last.
    start : (int, int)
        The position of the first entry that will be fed, and the tokens before it.
    room : int
        Rows that are held before they are passed on.
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

    def feed(self, entries: NDArray[np.int64], begin: int) -> None:
        """Cut the rows whose tokens lie in entries; `begin` is the position of the first."""
        if entries.size:
            self._last_length = tokens_of(entries[-1:])
        while self._left:
            room = min(self._left, len(self._held))
            self._count += emit_boundaries(
                entries,
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
