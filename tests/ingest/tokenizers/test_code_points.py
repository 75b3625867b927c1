"""The table of code points says what a comparison finds; it serves only what it was made of."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import msgspec
import numpy as np
import pytest

from distcache.ingest.tokenizers.find import find_tokenizer
from distcache.ingest.tokenizers.gigatoken import engine
from distcache.ingest.tokenizers.gigatoken.engine import (
    FIRST_CODE_POINT,
    TABLE,
    Gigatoken,
    PatternTable,
    mark_known,
    pattern_of,
)
from distcache.ingest.tokenizers.huggingface import HuggingFace
from distcache.ingest.tokenizers.tokenizer import TokenizerOptions
from distcache.ingest.tokenizers.tokenizer_json import TokenizerJson, read_tokenizer_json
from distcache.kernels import TextScanner
from tests.support.hard_texts import hard_texts, train

SURROGATES = range(0xD800, 0xE000)


def tokenizer(tmp_path: Path, kind: str) -> tuple[Gigatoken, TokenizerJson]:
    """Train a tokenizer of a kind, and return its engine and its description."""
    texts = [text for text, _ in zip(hard_texts(), range(100), strict=False)]
    path = train(tmp_path / f"{kind}.json", kind, texts, 1000)
    options = TokenizerOptions(str(path))
    source = find_tokenizer(options)
    library = HuggingFace(source.name, source.content, options, source.end)
    return Gigatoken(library, source.content), read_tokenizer_json(source.content)


@pytest.mark.parametrize("kind", ["gpt2", "llama3", "qwen", "o200k"])
def test_the_table_says_what_a_comparison_finds(kind: str, tmp_path: Path) -> None:
    """At both ends of each run, and at code points in between."""
    engine, description = tokenizer(tmp_path, kind)
    table = msgspec.json.decode(TABLE.read_bytes(), type=PatternTable)
    runs = table.differing[pattern_of(description)]
    chosen = {point for run in runs for end in run for point in (end - 1, end)}
    chosen |= set(np.random.default_rng(3).integers(FIRST_CODE_POINT, table.end, 2000).tolist())
    points = sorted(p for p in chosen if FIRST_CODE_POINT <= p < table.end and p not in SURROGATES)
    equal, plain = engine._are_equal(points), engine._known[points] == TextScanner.PLAIN
    assert equal[plain].all()
    # Newer Pythons know more code points whose normalization is settled; they go to the library.
    table_is_of = "14.0.0"
    if not description.normalizes or unicodedata.unidata_version == table_is_of:
        assert plain.tolist() == equal.tolist()
    assert (engine._known[points] != TextScanner.UNKNOWN).all()
    assert engine._known[table.end] == TextScanner.UNKNOWN


@pytest.mark.parametrize("why", ["version", "pattern"])
def test_what_the_table_does_not_know(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is compared when it occurs: with another version of a library, or for another pattern."""
    _, description = tokenizer(tmp_path, "llama3")
    if why == "version":
        table = msgspec.json.decode(TABLE.read_bytes(), type=PatternTable)
        other = msgspec.structs.replace(table, versions={**table.versions, "tokenizers": "0.1"})
        path = tmp_path / "table.json"
        path.write_bytes(msgspec.json.encode(other))
        monkeypatch.setattr(engine, "TABLE", path)
    else:
        changed = bytes(description.pre_tokenizer).replace(b"{1,3}", b"{1,2}")
        description = msgspec.structs.replace(description, pre_tokenizer=msgspec.Raw(changed))
    known = np.zeros(0x110000, np.uint8)
    mark_known(description, known)
    assert not known.any()


def test_what_changes_no_token_changes_no_pattern(tmp_path: Path) -> None:
    """As `trim_offsets`, of which files differ; a normalizer does."""
    _, description = tokenizer(tmp_path, "gpt2")
    before = bytes(description.pre_tokenizer)
    changed = json.dumps({**json.loads(before), "trim_offsets": False}).encode()
    assert json.loads(before)["trim_offsets"]
    other = msgspec.structs.replace(description, pre_tokenizer=msgspec.Raw(changed))
    assert pattern_of(other) == pattern_of(description)
    normal = msgspec.structs.replace(description, normalizer=msgspec.Raw(b'{"type":"NFC"}'))
    assert pattern_of(normal) != pattern_of(description)
