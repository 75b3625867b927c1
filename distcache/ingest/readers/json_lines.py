"""JSON lines: a field with a text, with a list of texts, or with a list of token ids."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NotRequired, TypedDict

import msgspec
import numpy as np

from distcache.ingest.inputs import Input, TextOptions, TokenOptions
from distcache.ingest.pieces import InputPiece
from distcache.ingest.readers.input_rows import (
    DECODED,
    InputRow,
    TokenRows,
    line_rows,
    too_long,
)
from distcache.ingest.readers.token_masks import IGNORE, LEFT_OUT, STARTS, readable
from distcache.ingest.tokenizers.tokenizer import Conversation

MAX_LINE_BYTES: Final = 1 << 30  # bytes of a line of ids
BATCH_IDS: Final = 1 << 19
BATCH_LINES: Final = 1 << 12
MAX_FIELDS: Final = 10  # names in an error message
JSON_LINES: Final = "expected JSON lines: an object on every line"
JSON_KINDS: Final = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    dict: "an object",
    list: "a list",
}


def json_rows(entry: Input, piece: InputPiece, options: TextOptions) -> Iterator[InputRow]:
    """Yield texts or conversations. JSON takes up to six bytes for a byte of a text."""
    limit = 6 * options.longest + DECODED
    decode: Callable[[str], list[Any] | None] = (
        text_decoder(options.text_key)
        if options.messages is None
        else chat_decoder(options.messages)
    )
    return line_rows(entry, piece, limit, too_long(options), decode)


def json_id_rows(
    entry: Input, piece: InputPiece, options: TokenOptions
) -> Iterator[TokenRows | InputRow]:
    """Yield the lists of ids of JSON lines, many at a time, and the lines that are rejected."""
    some: list[InputRow] = []
    lines = size = 0
    decode = ids_decoder(options.column, ignored=options.masks == "ignore")
    for row in line_rows(entry, piece, MAX_LINE_BYTES, f"more than {MAX_LINE_BYTES}", decode):
        if row.reason is None:
            lines += 1
            some += [row] if row.value is not None else []
            size += len(row.value[0]) if row.value else 0
        if some and (row.reason is not None or size >= BATCH_IDS or lines >= BATCH_LINES):
            yield _token_rows(some, lines, options.column)
            some, lines, size = [], 0, 0
        if row.reason is not None:
            yield row
    yield _token_rows(some, lines, options.column)


def _token_rows(rows: Sequence[InputRow], lines: int, column: str) -> TokenRows:
    import pyarrow as pa  # noqa: PLC0415

    found = [row.value or [[], {}] for row in rows]
    columns = {column: pa.array([ids for ids, _ in found], pa.large_list(pa.int64()))}
    for name in dict.fromkeys(name for _, masks in found for name in masks):
        values = [masks.get(name) for _, masks in found]
        columns[name] = pa.array(values, pa.large_list(pa.float64()))
    return TokenRows(
        pa.RecordBatch.from_pydict(columns),
        np.array([row.place for row in rows], np.int64),
        bytes=np.array([row.byte for row in rows], np.int64),
        lines=lines,
    )


@functools.cache
def text_decoder(key: str) -> Callable[[str], list[str] | None]:
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
            found = _texts_leniently(content, key, error)
        return found if isinstance(found, list) else [found]

    return texts_of


@functools.cache
def chat_decoder(key: str) -> Callable[[str], list[Conversation] | None]:
    """Return a function that extracts the conversation of a JSON line."""
    kind = TypedDict("Line", {key: list[Any], "tools": NotRequired[Any]})  # type: ignore[misc]  # known at run time
    decode = msgspec.json.Decoder(kind).decode

    def chat_of(content: str) -> list[Conversation] | None:
        if not content.strip():
            return None
        try:
            line: Any = decode(content)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            line = _decode_leniently(content, key, error, "--messages")
        return [Conversation(line[key], line.get("tools"))]

    return chat_of


def _decode_leniently(content: str, key: str, error: Exception, option: str) -> dict[str, Any]:
    """Return the object of a line, which has a field; raises `ValueError` about another line."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError(_not_json(content, error)) from error
    if not isinstance(document, dict):
        raise ValueError(f"expected an object with a field {key!r}; {JSON_LINES}") from error
    if key not in document:
        names = ", ".join(map(repr, list(document)[:MAX_FIELDS])) or "none"
        raise ValueError(
            f"expected an object with a field {key!r}; its fields are {names}: name one with "
            f"{option}"
        ) from error
    return document


def _texts_leniently(content: str, key: str, error: Exception) -> Any:
    found = _decode_leniently(content, key, error, "--text-key")[key]
    texts = found if isinstance(found, list) else [found]
    wrong = [JSON_KINDS[type(text)] for text in texts if not isinstance(text, str)]
    if wrong:
        inside = "a list with " if isinstance(found, list) else ""
        advice = "--on-error skip leaves such rows out"
        if wrong[0] == JSON_KINDS[dict]:
            advice = f"if these are conversations, give --messages {key}"
        raise ValueError(
            f"field {key!r} is {inside}{wrong[0]}, expected a text or a list of texts; {advice}"
        ) from error
    return found


def _not_json(content: str, error: Exception) -> str:
    """Return why a line is no JSON, or that it is not a JSON line."""
    return f"{error}; {JSON_LINES}" if content.lstrip()[:1] in ("[", "{", "]", "}") else str(error)


@functools.cache
def ids_decoder(column: str, *, ignored: bool = False) -> Callable[[str], list[Any] | None]:
    """Return a function that extracts the list of ids of a JSON line, and its masks by name."""
    names = (name for name in (*LEFT_OUT, STARTS) if name != column)
    masks: dict[str, Any] = dict.fromkeys(names, NotRequired[Any])
    kind = TypedDict("Line", {column: list[int], **masks})  # type: ignore[misc]  # known at run time
    decode = msgspec.json.Decoder(kind).decode

    def ids_of(content: str) -> list[Any] | None:
        if not content.strip():
            return None
        try:
            line: Any = decode(content)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            line = _ids_leniently(content, column, error)
        found: list[int] = line.pop(column)
        if line.pop(STARTS, None) is not None and not ignored:
            raise ValueError(
                f"has {STARTS}, as packed rows of Megatron-Bridge; give its Parquet file, or "
                f"{IGNORE}"
            )
        if found and not -(1 << 63) <= min(found) <= max(found) < 1 << 63:
            raise ValueError("has a token beyond 64 bits")
        return [found, readable(found, line, ignored=ignored)]

    return ids_of


def _ids_leniently(content: str, column: str, error: Exception) -> dict[str, Any]:
    """Return ids and masks of a line; Python's parser takes NaN and lone surrogates elsewhere."""
    with contextlib.suppress(ValueError, RecursionError):
        document: Any = json.loads(content)
        ids = document.get(column) if isinstance(document, dict) else None
        if isinstance(ids, list) and all(type(token) is int for token in ids):
            return {k: v for k, v in document.items() if k in (column, STARTS, *LEFT_OUT)}
    raise ValueError(
        f"{error}; expected JSON lines, each an object with a list of ids in field {column!r}"
    ) from error
