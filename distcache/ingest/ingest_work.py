"""The work of an ingest: pieces, their ranks and records; and where invalid rows are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from distcache.corpus.receipt import Skipped
from distcache.ingest.document_buffer import DocumentBuffer, Problem
from distcache.ingest.inputs import Input
from distcache.ingest.pieces import InputPiece, PieceRecord, Segment
from distcache.ingest.token_store import TokenStore

COMPRESSED: Final = 4  # cost of a byte of a compressed file, relative to others


class Reader(Protocol):
    """Reads documents from pieces of inputs. Called from several threads."""

    def read(
        self,
        entry: Input,
        piece: InputPiece,
        buffer: DocumentBuffer,
        stopped: Callable[[], bool],
    ) -> None:
        """Add the documents of a piece to a buffer, until an error or `stopped` ends it."""
        ...


@dataclass
class Work:
    """The work of an ingest."""

    inputs: list[Input]
    pieces: list[InputPiece]
    reader: Reader  # reads pieces
    store: TokenStore  # stores the documents
    may_spool: bool  # whether tokens that wait for their round may go to a file
    limit: int | None  # bytes of a `.bin`
    fail: bool  # whether an invalid row ends the ingest
    records: list[PieceRecord] = field(default_factory=list)  # of the finished, first pieces
    owners: list[int] = field(default_factory=list)  # the rank of each piece

    @property
    def segments(self) -> list[Segment]:
        """The places of the documents of all finished pieces."""
        return [segment for record in self.records for segment in record.segments]

    def input_of(self, piece: int) -> Input:
        """Return the input to which a piece belongs."""
        return self.inputs[self.pieces[piece].source]

    def bytes_of(self, pieces: Sequence[int]) -> int:
        """Return the bytes of pieces."""
        return sum(self.pieces[piece].nbytes for piece in pieces)

    def costs(self) -> list[int]:
        """Return the cost of each piece, in bytes that are not compressed."""
        return [
            piece.nbytes * (COMPRESSED if self.inputs[piece.source].compression else 1)
            for piece in self.pieces
        ]

    def firsts(self, records: Sequence[PieceRecord]) -> list[int]:
        """Return the rows, or lines, of its input before each of the first pieces."""
        found: list[int] = []
        source, first = -1, 0
        for piece, record in zip(self.pieces, records, strict=False):
            if piece.source != source:
                source, first = piece.source, 0
            found.append(first)
            # A damaged row group has rows that nothing could count.
            groups = self.inputs[source].groups[piece.begin : piece.end]
            first += sum(group.rows for group in groups) if groups else record.facts.places
        return found


def locate(entry: Input, problem: Problem, first: int) -> Skipped:
    """Return an invalid row by its place in the input.

    Parameters
    ----------
    entry : Input
        The input.
    problem : Problem
        The row.
    first : int
        Lines of the input before the piece of the row.
    """
    if problem.group is not None:
        return Skipped(entry.name, problem.reason, row_group=problem.group, row=problem.place)
    if problem.byte is None:
        return Skipped(entry.name, problem.reason)
    line = first + problem.place + 1
    return Skipped(entry.name, problem.reason, line=line, byte=problem.byte)
