"""The rows of text inputs: what a row may be, and plain files of text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from distcache.ingest.inputs import Input, TextOptions
from distcache.ingest.pieces import InputPiece
from distcache.ingest.readers.input_rows import InputRow, line_rows
from distcache.ingest.readers.lines import decoded, read_whole

DECODED: Final = 1 << 20  # bytes of a line beside those of its text, which are counted afterwards


def plain_rows(entry: Input, piece: InputPiece, options: TextOptions) -> Iterator[InputRow]:
    """Yield the lines of a piece of a plain file, or the whole file."""
    if options.documents == "file":
        yield _file_row(entry, options)
        return
    limit = options.longest + DECODED
    for row in line_rows(entry, piece, limit, too_long(options), _line_of):
        yield checked(row, options)


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
