"""Blends are the greedy ones, step by step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from distcache.kernels import Blender
from tests.kernels.truth import exhaustive_blend, weighted_blend

raw_weights = st.lists(
    st.one_of(st.sampled_from([1.0, 0.5, 1e-9]), st.floats(1e-6, 1e3, allow_nan=False)),
    min_size=1,
    max_size=200,
)


def drain(blender: Blender, size: int, piece: int) -> tuple[list[int], list[int]]:
    """Take steps a piece at a time."""
    corpora, samples = np.empty(size, np.int16), np.empty(size, np.int64)
    for begin in range(0, size, piece):
        blender.next(corpora[begin : begin + piece], samples[begin : begin + piece])
    return corpora.tolist(), samples.tolist()


@given(raw_weights, st.integers(0, 800), st.integers(1, 300))
def test_by_weight(weights: list[float], size: int, piece: int) -> None:
    """Also with ties, tiny weights and more corpora than steps."""
    normalized: NDArray[np.float64] = np.array(weights) / np.sum(weights)
    assert drain(Blender.by_weight(normalized), size, piece) == weighted_blend(normalized, size)


@given(st.lists(st.integers(1, 9), min_size=2, max_size=12), st.integers(0, 120))
def test_rounded_once(weights: list[int], size: int) -> None:
    """With weights of one digit, where many errors are equal but for their rounding."""
    normalized: NDArray[np.float64] = np.array(weights) / np.sum(weights)
    blended = drain(Blender.by_weight(normalized, fused=True), size, 50)
    assert blended == weighted_blend(normalized, size, fused=True)


def test_one_rounding_is_not_two() -> None:
    """Of the first weights that differ, so that the one cannot stand for the other."""
    weights = np.array([5.0, 3.0, 8.0, 8.0, 1.0]) / 25
    once = drain(Blender.by_weight(weights, fused=True), 100, 100)
    assert once == weighted_blend(weights, 100, fused=True)
    assert once != drain(Blender.by_weight(weights), 100, 100)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=120).filter(any), st.integers(1, 300))
def test_exhaustive(sizes: list[int], piece: int) -> None:
    """Every corpus is taken whole, and drops out when it is spent."""
    array = np.array(sizes, np.int64)
    blended = drain(Blender.exhaustive(array), int(array.sum()), piece)
    assert blended == exhaustive_blend(array)


@given(raw_weights, st.integers(0, 700), st.integers(0, 300))
def test_skipping_is_taking_without_writing(weights: list[float], skipped: int, size: int) -> None:
    """The counts and what follows are equal."""
    normalized: NDArray[np.float64] = np.array(weights) / np.sum(weights)
    taken, short = Blender.by_weight(normalized), Blender.by_weight(normalized)
    corpora, samples = drain(taken, skipped + size, 1000)
    short.skip(skipped)
    assert drain(short, size, 1000) == (corpora[skipped:], samples[skipped:])
    assert short.taken == taken.taken


def test_an_exhausted_blend_ends() -> None:
    """One step more than there are samples is an error."""
    blender = Blender.exhaustive(np.array([2, 1]))
    with pytest.raises(IndexError):
        blender.skip(4)
    blender.skip(3)


@pytest.mark.parametrize("bad", [[-1.0, 2.0], [float("nan")], [float("inf"), 1.0]])
def test_weights_that_are_no_weights(bad: list[float]) -> None:
    """Weights that are no weights are refused before a step is taken."""
    with pytest.raises(ValueError, match="finite"):
        Blender.by_weight(np.array(bad))


@pytest.mark.parametrize("taken", [[1], [1, 2, 3], [-1, 2], [3, 0], [2**63 - 1, 2**63 - 1]])
def test_a_blend_cannot_go_on_from_what_cannot_be(taken: list[int]) -> None:
    """A blend cannot go on from what cannot be, and stays where it was."""
    blender = Blender.exhaustive(np.array([2, 5], np.int64))
    blender.skip(3)
    before = blender.taken
    with pytest.raises(IndexError):
        blender.resume(np.array(taken, np.int64))
    assert blender.taken == before
    blender.skip(4)
