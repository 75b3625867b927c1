"""The texts on which engines are compared show what can differ, each code point included."""

from __future__ import annotations

import importlib.metadata
import json
import re
import unicodedata
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

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
from distcache.ingest.tokenizers.gigatoken.trials import is_stable, neighbours, probe_of, trials
from distcache.ingest.tokenizers.huggingface import HuggingFace
from distcache.ingest.tokenizers.tokenizer import TokenizerOptions
from distcache.ingest.tokenizers.tokenizer_json import TokenizerJson, read_tokenizer_json
from distcache.kernels import TextScanner
from tests.support.hard_texts import PATTERNS, hard_texts, train

NEW = "\u0378"  # which is not assigned


def description(pattern: str, normalizer: Any = None) -> TokenizerJson:
    """Return a tokenizer with a pattern."""
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    content = {
        "model": {"type": "BPE", "vocab": {}, "merges": []},
        "pre_tokenizer": json.loads(pre_tokenizers.Sequence([split, last]).__getstate__()),
        "normalizer": normalizer,
    }
    return read_tokenizer_json(json.dumps(content).encode())


def probe(pattern: str) -> Tokenizer:
    """Return the tokenizer that shows where a pattern cuts."""
    content = probe_of(description(pattern))
    assert content is not None
    return Tokenizer.from_buffer(content)


def cuts(pattern: str, text: str) -> list[int]:
    """Return where a pattern cuts a text, in characters."""
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    return [begin for _, (begin, _) in split.pre_tokenize_str(text)]


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
@pytest.mark.parametrize("letter", ["é", "漢", "\u0301", "²", "\u3000", "€", "😀", "\u0378"])
def test_the_probe_shows_every_cut(pattern: str, letter: str) -> None:
    """Beside a code point beyond ASCII: a pair of bytes across it is a token unless it is cut."""
    text = neighbours(ord(letter), normalized=False)
    found = probe(pattern).encode(text)
    crossed = {end for begin, end in found.offsets for end in range(begin + 1, end)}
    beside = {
        place
        for place in range(1, len(text))
        if not (text[place - 1].isascii() and text[place].isascii())
    }
    assert beside - set(cuts(pattern, text)) == crossed & beside


def classes() -> list[tuple[str, str]]:
    """Return each class that a pattern asks for."""
    found = {kind: set(re.findall(r"\\p\{\w+\}|\\s|\\r", PATTERNS[kind])) for kind in PATTERNS}
    return [(kind, name) for kind in sorted(found) for name in sorted(found[kind])]


@pytest.mark.parametrize(("kind", "name"), classes())
def test_a_code_point_in_another_class_is_seen(kind: str, name: str) -> None:
    """In whatever class a pattern asks for, as newer tables may have it."""
    pattern = PATTERNS[kind]
    changed = re.sub(
        r"\[[^\]]*\]|" + re.escape(name),
        lambda found: (
            found[0].replace(name, name + NEW) if found[0][0] == "[" else f"[{name}{NEW}]"
        ),
        pattern,
    ).replace(r"\S", f"[^\\s{NEW}]" if name == r"\s" else r"\S")
    assert changed != pattern
    text = neighbours(ord(NEW), normalized=False)
    assert probe(pattern).encode(text).ids != probe(changed).encode(text).ids


def test_neighbours_compose() -> None:
    """With a normalizer, a code point that is not very old stands beside all that compose."""
    new = "\U00011935"  # Dives Akuru, Unicode 13: composes with U+11930
    text = neighbours(ord(new), normalized=True)
    assert unicodedata.normalize("NFC", text) != text
    assert new + "\U00011930" in text
    assert len(neighbours(ord(new), normalized=False)) < len(text)
    assert len(neighbours(ord("é"), normalized=True)) < len(text)


def test_what_is_stable() -> None:
    """Private use is; what Unicode may yet assign is not."""
    assert is_stable(ord("a"))
    assert is_stable(ord("é"))
    assert not is_stable(0x212A), "the sign of Kelvin becomes a K"
    assert is_stable(0xE000)
    assert not is_stable(0x0378)


def test_trials_have_all_pairs_of_ascii() -> None:
    """Trials have all pairs of ascii in one text for each first letter."""
    texts = [text for batch in trials([]) for text in batch]
    whole = "\n\n".join(texts)
    letters = [chr(code_point) for code_point in range(0x80)]
    assert all(first + second in whole for first in letters for second in letters)
    assert "" in texts


def test_tokenizers_with_a_normalizer() -> None:
    """Keep it in the probe."""
    nfc = json.loads(normalizers.NFC().__getstate__())
    content = probe_of(description(PATTERNS["qwen"], nfc))
    assert content is not None
    assert json.loads(content)["normalizer"] == nfc
    assert description(PATTERNS["qwen"], nfc).normalizes
    assert not description(PATTERNS["qwen"]).normalizes


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
        other = msgspec.structs.replace(table, versions={**table.versions, "tokenizers": ("0.1",)})
        path = tmp_path / "table.json"
        path.write_bytes(msgspec.json.encode(other))
        monkeypatch.setattr(engine, "TABLE", path)
    else:
        changed = bytes(description.pre_tokenizer).replace(b"{1,3}", b"{1,2}")
        description = msgspec.structs.replace(description, pre_tokenizer=msgspec.Raw(changed))
    known = np.zeros(0x110000, np.uint8)
    mark_known(description, known)
    assert not known.any()


def test_the_pinned_engine_is_the_one_that_was_compared() -> None:
    """Who renews the pin first compares the new release with the library."""
    table = msgspec.json.decode(TABLE.read_bytes(), type=PatternTable)
    assert importlib.metadata.version("gigatoken") in table.versions["gigatoken"], (
        "run scripts/engines --megabytes 300, which compares the tokens of both engines, and then "
        "scripts/code_points, which lists the new release"
    )


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
