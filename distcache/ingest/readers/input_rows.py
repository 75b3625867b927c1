"""Rows of inputs, of any format; and those that are lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distcache.ingest.inputs import Input
from distcache.ingest.pieces import InputPiece
from distcache.ingest.readers.lines import lines_of_range, lines_of_stream, text_of_line

if TYPE_CHECKING:
    import pyarrow as pa


class InputRow(NamedTuple):
    """A row, or the reason why it is rejected."""

    place: int  # number of the row in the piece, or in the row group, from 0
    value: list[Any] | None  # texts, of which each becomes a sequence, or ids; None: a blank line
    reason: str | None = None  # problem of the row
    byte: int | None = None  # first byte of the row in the (decompressed) file
    group: int | None = None  # row group of the row
    before: int = 0  # rows of earlier row groups of the piece


class TokenRows(NamedTuple):
    """Rows of token ids."""

    batch: pa.RecordBatch  # a column of lists, and those that are compared with it
    places: NDArray[np.int64]  # number of each row in the piece
    bytes: NDArray[np.int64] | None = None  # first byte of each row in the (decompressed) file
    group: int | None = None  # row group of the rows
    before: int = 0  # rows of earlier row groups of the piece
    lines: int = 0  # lines that were read, with blank ones


def line_rows(
    entry: Input,
    piece: InputPiece,
    limit: int,
    too_long: str,
    decode: Callable[[str], list[Any] | None],
) -> Iterator[InputRow]:
    """Yield the row of each line.

    Parameters
    ----------
    entry, piece : Input, InputPiece
        The lines.
    limit : int
        Bytes of a line.
    too_long : str
        Words about a line that has more.
    decode : callable
        Returns the value of a line, None for a blank one, or raises `ValueError`.

    Yields
    ------
    InputRow
        Rows in order. If the rest of the piece cannot be read, the last one says so.
    """
    place, byte = -1, piece.begin
    if entry.compression:
        lines = lines_of_stream(entry.path, entry.compression, limit)
    else:
        lines = lines_of_range(entry.path, piece.begin, piece.end, limit)
    try:
        for place, line in enumerate(lines):
            byte = line.position + line.size + 1
            value, reason = None, None
            if line.content is None:
                reason = f"has {line.size} bytes, {too_long}"
            else:
                try:
                    value = decode(text_of_line(line))
                except ValueError as error:
                    reason = str(error)
            yield InputRow(place, value, reason, line.position)
    except OSError as error:
        reason = f"cannot be read from here on: {error.strerror or error}"
        yield InputRow(place + 1, None, reason, byte)
