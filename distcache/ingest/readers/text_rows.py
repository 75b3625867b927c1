"""The rows of text inputs: lines of JSON or of text, whole files, rows of Parquet files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypedDict

import msgspec

from distcache.ingest.inputs import Input
from distcache.ingest.pieces import InputPiece
from distcache.ingest.read_options import TextOptions
from distcache.ingest.readers.lines import (
    Line,
    decoded,
    lines_of_range,
    lines_of_stream,
    read_whole,
    text_of_line,
)

SLICE: Final = 256  # rows of a Parquet file that are Python objects at a time
MOST_FIELDS: Final = 10  # names in an error message
JSON_LINES: Final = "expected JSON lines: an object on every line"
JSON_KINDS: Final = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    dict: "an object",
    list: "a list",
}


class TextRow(NamedTuple):
    """A parsed row, or the reason why it was rejected."""

    place: int  # number of the row in the piece, or in the row group, from 0
    texts: list[str] | None  # each becomes a sequence; None for a blank line
    reason: str | None = None  # problem of the row
    byte: int | None = None  # first byte of the row in the (decompressed) file
    group: int | None = None  # row group of the row


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
    if entry.is_table:
        return _table_rows(entry, piece, options)
    if entry.format == "jsonl":
        return _line_rows(entry, piece, options, json_decoder(options.text_key))
    if options.documents == "line":
        return _line_rows(entry, piece, options, _plain_line)
    return iter([_file_row(entry, options)])


def json_decoder(key: str) -> Callable[[str], list[str] | None]:
    """Return a function that extracts the text, or the list of texts, from a JSON line.

    Other fields are skipped, not decoded. Lines that the strict parser refuses are parsed by
    Python's, which Megatron uses: it accepts NaN and lone surrogates.
    """
    kind = TypedDict("Line", {key: str | list[str]})  # type: ignore[misc]  # known at run time
    decode = msgspec.json.Decoder(kind).decode

    def texts_of(content: str) -> list[str] | None:
        if not content.strip():
            return None
        try:
            found: Any = decode(content)[key]  # type: ignore[literal-required]
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            found = _decode_leniently(content, key, error)
        return found if isinstance(found, list) else [found]

    return texts_of


def _decode_leniently(content: str, key: str, error: Exception) -> Any:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError(_not_json(content, error)) from error
    if not isinstance(document, dict):
        raise ValueError(f"expected an object with a field {key!r}; {JSON_LINES}") from error
    if key not in document:
        names = ", ".join(map(repr, list(document)[:MOST_FIELDS])) or "none"
        raise ValueError(
            f"expected an object with a field {key!r}; its fields are {names}: name one with "
            "--text-key"
        ) from error
    found = document[key]
    texts = found if isinstance(found, list) else [found]
    wrong = [JSON_KINDS[type(text)] for text in texts if not isinstance(text, str)]
    if wrong:
        inside = "a list with " if isinstance(found, list) else ""
        raise ValueError(
            f"field {key!r} is {inside}{wrong[0]}, expected a text or a list of texts; --on-error "
            "skip leaves such rows out"
        ) from error
    return found


def _not_json(content: str, error: Exception) -> str:
    """Return why a line is no JSON, or that it is not a JSON line."""
    return f"{error}; {JSON_LINES}" if content.lstrip()[:1] in ("[", "{", "]", "}") else str(error)


def _plain_line(text: str) -> list[str]:
    return [text.removesuffix("\r")]


def _line_rows(
    entry: Input,
    piece: InputPiece,
    options: TextOptions,
    decode: Callable[[str], list[str] | None],
) -> Iterator[TextRow]:
    place, byte = -1, piece.begin
    try:
        for place, line in enumerate(_lines(entry, piece, options)):
            byte = line.position + line.size + 1
            yield _line_row(place, line, options, decode)
    except OSError as error:
        reason = f"cannot be read from here on: {error.strerror or error}"
        yield TextRow(place + 1, [], reason, byte)


def _lines(entry: Input, piece: InputPiece, options: TextOptions) -> Iterator[Line]:
    # An escaped character takes up to six bytes of JSON; the text is checked after decoding.
    limit = options.longest * (6 if entry.format == "jsonl" else 1) + (1 << 20)
    if entry.compression:
        return lines_of_stream(entry.path, entry.compression, limit)
    return lines_of_range(entry.path, piece.begin, piece.end, limit)


def _line_row(
    place: int, line: Line, options: TextOptions, decode: Callable[[str], list[str] | None]
) -> TextRow:
    if line.content is None:
        return TextRow(place, [], _too_long(f"{line.size} bytes", options), line.position)
    try:
        texts = decode(text_of_line(line))
    except ValueError as error:
        return TextRow(place, [], str(error), line.position)
    return _checked(TextRow(place, texts, None, line.position), options)


def _checked(row: TextRow, options: TextOptions) -> TextRow:
    texts = row.texts or []
    if 4 * sum(map(len, texts)) <= options.longest:
        return row
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    if size > options.longest:
        return row._replace(texts=[], reason=_too_long(f"{size} bytes", options))
    return row


def _too_long(size: str, options: TextOptions) -> str:
    return (
        f"has {size}, more than the {options.longest} that a document may have; raise "
        "--max-document-size, or leave it out by --on-error skip"
    )


def _file_row(entry: Input, options: TextOptions) -> TextRow:
    try:
        content = read_whole(entry.path, entry.compression, options.longest)
        if content is None:
            return TextRow(0, [], _too_long("too many bytes", options))
        return TextRow(0, [decoded(content, "of the file", at_begin=True)])
    except ValueError as error:
        return TextRow(0, [], str(error))
    except OSError as error:
        return TextRow(0, [], f"cannot be read: {error.strerror or error}")


def _table_rows(entry: Input, piece: InputPiece, options: TextOptions) -> Iterator[TextRow]:
    from distcache.ingest.readers.tables import open_table, values_of  # noqa: PLC0415

    with open_table(entry) as table:
        for group in range(piece.begin, piece.end):
            place = 0
            try:
                for batch in table.batches(group, [options.text_key], SLICE):
                    for value in values_of(batch.column(0)):
                        yield _checked(_value_row(place, value, group), options)
                        place += 1
            except ValueError as error:
                yield TextRow(place, [], str(error), None, group)


def _value_row(place: int, value: Any, group: int) -> TextRow:
    if isinstance(value, UnicodeDecodeError):
        return TextRow(place, [], f"invalid UTF-8 at byte {value.start} of the text", None, group)
    texts = value if isinstance(value, list) else [value]
    if any(text is None for text in texts):
        return TextRow(place, [], "is null, or has a null in it", None, group)
    return TextRow(place, texts, None, None, group)
