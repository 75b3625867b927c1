"""The rows of text inputs, in any format; lines, and what a row may be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from distcache.extras import imported
from distcache.ingest.inputs import Input, TextOptions
from distcache.ingest.pieces import InputPiece
from distcache.ingest.readers.formats import FORMATS
from distcache.ingest.readers.lines import (
    Line,
    lines_of_range,
    lines_of_stream,
    text_of_line,
)


class TextRow(NamedTuple):
    """A parsed row, or the reason why it was rejected."""

    place: int  # number of the row in the piece, or in the row group, from 0
    texts: list[str] | None  # each becomes a sequence; None for a blank line
    reason: str | None = None  # problem of the row
    byte: int | None = None  # first byte of the row in the (decompressed) file
    group: int | None = None  # row group of the row
    before: int = 0  # rows of earlier row groups of the piece


def text_rows(entry: Input, piece: InputPiece, options: TextOptions) -> Iterator[TextRow]:
    """Yield the rows of a piece of an input.

    Parameters
    ----------
    entry : Input
        The input.
    piece : InputPiece
        Piece of the input.
    options : TextOptions
        Options of a row.

    Yields
    ------
    TextRow
        Rows in order. Invalid rows have a reason, and so has the last one if the rest of
        the piece cannot be read.
    """
    rows: Iterator[TextRow] = imported(FORMATS[entry.format].texts)(entry, piece, options)
    return rows


def line_rows(
    entry: Input,
    piece: InputPiece,
    options: TextOptions,
    decode: Callable[[str], list[str] | None],
) -> Iterator[TextRow]:
    """Yield the row of each line, whose texts a function finds; None for a blank line."""
    place, byte = -1, piece.begin
    try:
        for place, line in enumerate(_lines(entry, piece, options)):
            byte = line.position + line.size + 1
            yield _line_row(place, line, options, decode)
    except OSError as error:
        reason = f"cannot be read from here on: {error.strerror or error}"
        yield TextRow(place + 1, [], reason, byte)


def _lines(entry: Input, piece: InputPiece, options: TextOptions) -> Iterator[Line]:
    # The text is checked after decoding.
    limit = options.longest * (6 if FORMATS[entry.format].is_escaped else 1) + (1 << 20)
    if entry.compression:
        return lines_of_stream(entry.path, entry.compression, limit)
    return lines_of_range(entry.path, piece.begin, piece.end, limit)


def _line_row(
    place: int, line: Line, options: TextOptions, decode: Callable[[str], list[str] | None]
) -> TextRow:
    if line.content is None:
        return TextRow(place, [], too_long(f"{line.size} bytes", options), line.position)
    try:
        texts = decode(text_of_line(line))
    except ValueError as error:
        return TextRow(place, [], str(error), line.position)
    return checked(TextRow(place, texts, None, line.position), options)


def checked(row: TextRow, options: TextOptions) -> TextRow:
    """Return a row, or its rejection if its texts are too long."""
    texts = row.texts or []
    if 4 * sum(map(len, texts)) <= options.longest:
        return row
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    if size > options.longest:
        return row._replace(texts=[], reason=too_long(f"{size} bytes", options))
    return row


def too_long(size: str, options: TextOptions) -> str:
    """Return why a row is rejected that has more bytes than a document may have."""
    return (
        f"has {size}, more than the {options.longest} that a document may have; raise "
        "--max-document-size, or leave it out by --on-error skip"
    )
