"""Tokens in another type: as NumPy has them, and the first that is out of range."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from distcache.kernels import first_outside, narrow_tokens

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
