"""Where rows stand in their inputs: a piece knows their places in it only."""

from __future__ import annotations

from collections.abc import Sequence

from distcache.corpus.receipt import Skipped
from distcache.ingest.inputs import Input
from distcache.ingest.part import PieceFacts, Problem
from distcache.ingest.pieces import Piece

__all__ = ["Locator"]


class Locator:
    """Counts the lines of inputs, piece after piece, so that rows can be named.

    Parameters
    ----------
    inputs, pieces
        Of the ingest.
    """

    def __init__(self, inputs: Sequence[Input], pieces: Sequence[Piece]) -> None:
        self._inputs = inputs
        self._pieces = pieces
        self._source = -1
        self._before = 0

    def skipped(self, piece: int, facts: PieceFacts) -> list[Skipped]:
        """Return what is wrong with the rows of the next piece, by their places in the input."""
        source = self._pieces[piece].source
        if source != self._source:
            self._source, self._before = source, 0
        entry = self._inputs[source]
        found = [self._locate(entry, problem) for problem in facts.problems]
        self._before += facts.lines
        return found

    def _locate(self, entry: Input, problem: Problem) -> Skipped:
        if problem.group is not None:
            return Skipped(entry.path, problem.reason, row_group=problem.group, row=problem.place)
        if problem.byte is None:
            return Skipped(entry.path, problem.reason)
        line = self._before + problem.place + 1
        return Skipped(entry.path, problem.reason, line=line, byte=problem.byte)
