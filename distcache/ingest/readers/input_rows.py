"""Rows of inputs, of any format; and those that are lines, or texts without a format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distcache.ingest.inputs import Input, TextOptions
from distcache.ingest.pieces import InputPiece
from distcache.ingest.readers.lines import (
    decoded,
    lines_of_range,
    lines_of_stream,
    read_whole,
    text_of_line,
)

if TYPE_CHECKING:
    import pyarrow as pa

DECODED: Final = 1 << 20  # bytes of a line beside those of its text, which are counted afterwards


class InputRow(NamedTuple):
    """A row, or the reason why it is rejected."""

    place: int  # number of the row in the piece, or in the row group, from 0
    # texts, of which each becomes a sequence; a `Conversation`; or ids. None: a blank line
    value: list[Any] | None
    reason: str | None = None  # problem of the row
    byte: int | None = None  # first byte of the row in the (decompressed) file
    group: int | None = None  # row group of the row
    before: int = 0  # rows of earlier row groups of the piece


class TokenRows(NamedTuple):
    """Rows of token ids."""

    batch: pa.RecordBatch  # a column of lists
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


def plain_rows(entry: Input, piece: InputPiece, options: TextOptions) -> Iterator[InputRow]:
    """Yield the lines of a piece of a plain file, or the whole file."""
    if options.documents == "file":
        yield _file_row(entry, options)
        return
    limit = options.longest + DECODED
    yield from line_rows(entry, piece, limit, too_long(options), _line_of)


def _line_of(text: str) -> list[str]:
    return [text.removesuffix("\r")]


def _file_row(entry: Input, options: TextOptions) -> InputRow:
    try:
        content = read_whole(entry.path, entry.compression, options.longest)
        if content is None:
            return InputRow(0, None, f"has too many bytes, {too_long(options)}")
        return InputRow(0, [decoded(content, "of the file", at_begin=True)])
    except ValueError as error:
        return InputRow(0, None, str(error))
    except OSError as error:
        return InputRow(0, None, f"cannot be read: {error.strerror or error}")


def checked(row: InputRow, options: TextOptions) -> InputRow:
    """Return a row, or its rejection if its texts are too long."""
    texts = row.value or []
    if 4 * sum(map(len, texts)) <= options.longest:
        return row
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    if size > options.longest:
        return row._replace(value=None, reason=f"has {size} bytes, {too_long(options)}")
    return row


def too_long(options: TextOptions) -> str:
    """Return what is said of a row that has more bytes than a document may have."""
    return (
        f"more than the {options.longest} that a document may have; raise --max-document-size, or "
        "leave it out by --on-error skip"
    )
