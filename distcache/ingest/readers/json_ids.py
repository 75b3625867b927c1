"""Token ids in JSON lines: a field with a list of ids."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator
from typing import Any, Final, TypedDict

import msgspec
import pyarrow as pa

from distcache.ingest.inputs import Input, TokenOptions
from distcache.ingest.pieces import InputPiece
from distcache.ingest.readers.lines import Line, lines_of_range, lines_of_stream, text_of_line
from distcache.ingest.readers.token_rows import TokenRows

LONGEST_LINE: Final = 1 << 30  # bytes
BATCH_BYTES: Final = 4 << 20
BATCH_LINES: Final = 1 << 12


def json_id_rows(entry: Input, piece: InputPiece, options: TokenOptions) -> Iterator[TokenRows]:
    """Yield the documents of JSON lines, each an object with a list of ids."""
    decode = _decoder(options.column)
    rows: list[list[int]] = []
    place, lines, size, begin = -1, 0, 0, piece.begin
    if entry.compression:
        found = lines_of_stream(entry.path, entry.compression, LONGEST_LINE)
    else:
        found = lines_of_range(entry.path, piece.begin, piece.end, LONGEST_LINE)
    try:
        for place, line in enumerate(found):
            lines += 1
            try:
                if line.content is None:
                    raise ValueError(f"has {line.size} bytes, more than {LONGEST_LINE}")
                text = text_of_line(line)
                if text.strip():
                    tokens = _ids_of(text, decode, options.column)
                    if tokens and not -(1 << 63) <= min(tokens) <= max(tokens) < 1 << 63:
                        raise ValueError("has a token beyond 64 bits")
                    rows.append(tokens)
                    size += line.size
                elif rows:  # the rows of a batch are consecutive lines
                    yield from _batch(rows, place, begin, lines - 1)
                    rows, lines, size, begin = [], 1, 0, line.position + line.size + 1
            except ValueError as error:
                yield from _batch(rows, place, begin, lines - 1)
                reason = _reason(line, error, options.column)
                yield TokenRows(place, None, (reason, line.position), None, 1)
                rows, lines, size, begin = [], 0, 0, line.position + line.size + 1
            if size >= BATCH_BYTES or len(rows) >= BATCH_LINES:
                yield from _batch(rows, place + 1, begin, lines)
                rows, lines, size, begin = [], 0, 0, line.position + line.size + 1
    except OSError as error:
        yield from _batch(rows, place + 1, begin, lines)
        reason = f"cannot be read from here on: {error.strerror or error}"
        yield TokenRows(place + 1, None, (reason, begin))
        return
    yield from _batch(rows, place + 1, begin, lines)


@functools.cache
def _decoder(column: str) -> Callable[[str], Any]:
    kind = TypedDict("Line", {column: list[int]})  # type: ignore[misc]  # known at run time
    return msgspec.json.Decoder(kind).decode


def _reason(line: Line, error: ValueError, column: str) -> str:
    """Return why a line is rejected."""
    if line.content is None:
        return str(error)
    return f"{error}; expected JSON lines, each an object with a list of ids in field {column!r}"


def _ids_of(text: str, decode: Callable[[str], Any], column: str) -> list[int]:
    """Return the ids of a line; Python's parser accepts NaN and lone surrogates in other fields."""
    try:
        found: list[int] = decode(text)[column]
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        with contextlib.suppress(ValueError, RecursionError):
            document: Any = json.loads(text)
            ids = document.get(column) if isinstance(document, dict) else None
            if isinstance(ids, list) and all(type(token) is int for token in ids):
                return ids
        raise ValueError(str(error)) from error
    return found


def _batch(rows: list[list[int]], end: int, begin: int, lines: int) -> Iterator[TokenRows]:
    if rows or lines:
        lists = pa.array(rows, pa.large_list(pa.int64()))
        yield TokenRows(end - len(rows), lists, None, begin, lines)
