"""Texts in plain files: a document is a file, or each of its lines."""

from __future__ import annotations

from collections.abc import Iterator

from distcache.ingest.inputs import Input, TextOptions
from distcache.ingest.pieces import InputPiece
from distcache.ingest.readers.lines import decoded, read_whole
from distcache.ingest.readers.text_rows import TextRow, line_rows, too_long


def plain_rows(entry: Input, piece: InputPiece, options: TextOptions) -> Iterator[TextRow]:
    """Yield the lines of a piece, or the whole file."""
    if options.documents == "line":
        return line_rows(entry, piece, options, lambda text: [text.removesuffix("\r")])
    return iter([_file_row(entry, options)])


def _file_row(entry: Input, options: TextOptions) -> TextRow:
    try:
        content = read_whole(entry.path, entry.compression, options.longest)
        if content is None:
            return TextRow(0, [], too_long("too many bytes", options))
        return TextRow(0, [decoded(content, "of the file", at_begin=True)])
    except ValueError as error:
        return TextRow(0, [], str(error))
    except OSError as error:
        return TextRow(0, [], f"cannot be read: {error.strerror or error}")
