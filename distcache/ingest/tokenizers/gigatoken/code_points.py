"""Code points that two libraries are known to cut alike, and differently, for usual patterns.

How a byte-level BPE cuts text follows from its normalizer and pre-tokenizer, and not from its
vocabulary. `scripts/code_points` has compared the pinned gigatoken with one version of tokenizers,
code point by code point, for the patterns of models that are used most; with other versions, and
for other patterns, each code point is compared when it first occurs.
"""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from distcache.ingest.tokenizers.tokenizer_json import TokenizerJson
from distcache.kernels import TextScanner
from distcache.storage.threads import decodable

TABLE: Final = Path(__file__).with_name("code_points.json")
FIRST: Final = 0x80  # those of ASCII are part of the trials
WITHOUT_EFFECT: Final = "trim_offsets"  # on tokens


@decodable
class PatternTable(msgspec.Struct, frozen=True):
    """Result of `scripts/code_points`."""

    versions: dict[str, str]  # version of each of the two libraries
    end: int  # code point below which all were compared
    # runs [begin, end) of code points that are cut differently, by `pattern_of`
    differing: dict[str, list[tuple[int, int]]]


def pattern_of(description: TokenizerJson) -> str:
    """Return the digest of what decides where a tokenizer cuts text."""
    normalizer = json.loads(bytes(description.normalizer)) if description.normalizes else None
    pre_tokenizer = _bare(json.loads(bytes(description.pre_tokenizer)))
    document = json.dumps([normalizer, pre_tokenizer], sort_keys=True)
    return xxhash.xxh3_128_hexdigest(document.encode())


def _bare(value: Any) -> Any:
    """Return a JSON value without the fields that change no token."""
    if isinstance(value, dict):
        return {name: _bare(inner) for name, inner in value.items() if name != WITHOUT_EFFECT}
    return [_bare(inner) for inner in value] if isinstance(value, list) else value


def mark_known(description: TokenizerJson, known: NDArray[np.uint8]) -> None:
    """Mark the code points of which the table says whether they are cut alike.

    Parameters
    ----------
    description : TokenizerJson
        Description of a byte-level tokenizer.
    known : ndarray of uint8, shape (0x110000,)
        Array to be marked with `TextScanner.PLAIN` and `TextScanner.OTHER`.
    """
    table = msgspec.json.decode(TABLE.read_bytes(), type=PatternTable)
    if any(metadata.version(name) != version for name, version in table.versions.items()):
        return
    runs = table.differing.get(pattern_of(description))
    if runs is None:
        return
    known[FIRST : table.end] = TextScanner.PLAIN
    for begin, end in runs:
        known[begin:end] = TextScanner.OTHER
