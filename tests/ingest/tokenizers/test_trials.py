"""The texts on which engines are compared show what can differ."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

from distcache.ingest.tokenizers.gigatoken.trials import is_stable, neighbours, probe_of, trials
from distcache.ingest.tokenizers.tokenizer_json import TokenizerJson, read_tokenizer_json
from tests.support.hard_texts import PATTERNS

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
