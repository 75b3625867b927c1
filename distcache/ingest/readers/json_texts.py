"""Texts in JSON lines: a field with a text, or with a list of texts."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from typing import Any, Final, TypedDict

import msgspec

from distcache.ingest.inputs import Input, TextOptions
from distcache.ingest.pieces import InputPiece
from distcache.ingest.readers.text_rows import TextRow, line_rows

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


def json_rows(entry: Input, piece: InputPiece, options: TextOptions) -> Iterator[TextRow]:
    """Yield the rows of a piece of JSON lines."""
    return line_rows(entry, piece, options, json_decoder(options.text_key))


@functools.cache
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
