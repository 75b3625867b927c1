"""The work of an ingest: tasks, their ranks and records; and where invalid rows are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from distcache.corpus.receipt import Skipped
from distcache.ingest.inputs import Input
from distcache.ingest.part import PieceFacts, Problem, Sink
from distcache.ingest.pieces import InputPiece, Segment, TaskRecord
from distcache.ingest.token_store import TokenStore

COMPRESSED: Final = 4  # cost of a byte of a compressed file, relative to others


class Reader(Protocol):
    """Reads documents from pieces of inputs. Called from several threads."""

    def read(
        self, entry: Input, piece: InputPiece, part: Sink, stopped: Callable[[], bool]
    ) -> bool:
        """Add the documents of a piece to a part; false if an error ends the ingest."""
        ...


@dataclass
class Work:
    """The work of an ingest."""

    # inputs, their pieces, and tasks as ranges of pieces
    inputs: list[Input]
    pieces: list[InputPiece]
    tasks: list[range]
    reader: Reader  # reads pieces
    store: TokenStore  # stores the documents
    spools: bool  # whether the tokens of a task may go to a file
    limit: int | None  # bytes of a `.bin`
    fail: bool  # whether an invalid row ends the ingest
    records: list[TaskRecord] = field(default_factory=list)  # of the finished tasks, the first ones
    owners: list[int] = field(default_factory=list)  # the rank of each task

    @property
    def segments(self) -> list[Segment]:
        """The places of the documents of all finished tasks."""
        return [segment for record in self.records for segment in record.segments]

    def bytes_of(self, task: int) -> int:
        """Return the bytes of the inputs of a task."""
        return sum(self.pieces[index].nbytes for index in self.tasks[task])

    def cost_of(self, task: int) -> int:
        """Return the cost of a task, in bytes that are not compressed."""
        pieces = [self.pieces[index] for index in self.tasks[task]]
        return sum(
            piece.nbytes * (COMPRESSED if self.inputs[piece.source].compression else 1)
            for piece in pieces
        )


class Locator:
    """Counts the lines of inputs, piece after piece, to locate rows.

    Parameters
    ----------
    work : Work
        Work with the inputs and their pieces.
    """

    def __init__(self, work: Work) -> None:
        self._inputs = work.inputs
        self._pieces = work.pieces
        self._source = -1
        self._before = 0

    def skipped(self, piece: int, facts: PieceFacts) -> list[Skipped]:
        """Return the invalid rows of the next piece, by their places in the input."""
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
