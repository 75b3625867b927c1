"""Tokens in another type, and the scanner of texts, against plain definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from distcache.kernels import TextScanner, first_outside, narrow_tokens

INPUTS = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8")
OUTPUTS = ("u1", "i1", "u2", "i2", "i4", "i8")


def slow_first_outside(values: list[int], limit: int) -> int:
    """Look at one token after the other."""
    return next((i for i, value in enumerate(values) if not 0 <= value < limit), -1)


@given(
    values=st.sampled_from(INPUTS).flatmap(lambda kind: arrays(kind, st.integers(0, 70))),
    kind=st.sampled_from(OUTPUTS),
    limit=st.integers(0, 1 << 63),
)
def test_tokens_are_narrowed_exactly(values: np.ndarray, kind: str, limit: int) -> None:
    """Up to the first that is not below the limit."""
    limit = min(limit, int(np.iinfo(kind).max) + 1)
    out = np.empty(len(values), kind)
    place = narrow_tokens(values, limit, out)
    assert place == slow_first_outside(values.tolist(), limit) == first_outside(values, limit)
    good = values.tolist() if place < 0 else values.tolist()[:place]
    assert out.tolist()[: len(good)] == good


def test_misuse_is_refused() -> None:
    """Other types, other sizes, and limits that the type does not hold."""
    tokens = np.zeros(4, "i4")
    with pytest.raises(ValueError, match="equal size"):
        narrow_tokens(tokens, 10, np.empty(3, "u2"))
    with pytest.raises(ValueError, match="limit must fit"):
        narrow_tokens(tokens, 257, np.empty(4, "u1"))
    with pytest.raises(TypeError, match="values must be integers"):
        narrow_tokens(tokens.astype("f4"), 10, np.empty(4, "u2"))
    with pytest.raises(TypeError, match="out must be integers"):
        narrow_tokens(tokens, 10, np.empty(4, "f4"))
    with pytest.raises(TypeError, match="contiguous"):
        first_outside(np.zeros((4, 2), "i4")[:, 0], 10)


LETTERS = st.sampled_from("ab<|éλ漢😀\x00")
WORDS = st.lists(st.text(LETTERS, min_size=1, max_size=4), max_size=6)
TEXTS = st.lists(st.text(LETTERS | st.characters(), max_size=20), max_size=6)
STATES = (TextScanner.UNKNOWN, TextScanner.PLAIN, TextScanner.OTHER)


def nothing_known() -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Return that no code point is known."""
    return np.full(0x110000, TextScanner.UNKNOWN, np.uint8)


@given(words=WORDS, texts=TEXTS, states=st.dictionaries(LETTERS, st.sampled_from(STATES)))
def test_what_it_finds(words: list[str], texts: list[str], states: dict[str, int]) -> None:
    """Words anywhere, code points by what is known of them, and lone surrogates."""
    known = nothing_known()
    for letter, state in states.items():
        known[ord(letter)] = state

    def is_left(text: str) -> bool:
        others = (
            not letter.isascii() and known[ord(letter)] == TextScanner.OTHER for letter in text
        )
        surrogates = ("\ud800" <= letter <= "\udfff" for letter in text)
        return any(word in text for word in words) or any(others) or any(surrogates)

    left, unknown = TextScanner(words).scan(texts, known)
    assert left.tolist() == list(map(is_left, texts))
    plain = {letter for text in texts if not is_left(text) for letter in text}
    wanted = {ord(x) for x in plain if not x.isascii() and known[ord(x)] == TextScanner.UNKNOWN}
    assert unknown.tolist() == sorted(set(unknown.tolist()))
    assert wanted <= set(unknown.tolist())
    assert (known[unknown] == TextScanner.UNKNOWN).all()


def test_what_it_refuses() -> None:
    """Empty words, which are everywhere, and a table of another size or type."""
    with pytest.raises(ValueError, match="must not be empty"):
        TextScanner(["a", ""])
    with pytest.raises(ValueError, match="each code point"):
        TextScanner([]).scan(["a"], np.zeros(100, np.uint8))
    with pytest.raises(TypeError, match="known must have dtype uint8"):
        TextScanner([]).scan(["a"], np.zeros(0x110000, np.int32))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        TextScanner([]).scan([b"a"], nothing_known())  # type: ignore[list-item]
