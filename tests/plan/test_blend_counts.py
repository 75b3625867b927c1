"""Guesses at how often a blend has taken each corpus."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distcache.kernels import Blender
from distcache.plan.blend_counts import estimate_counts

size_lists = st.lists(st.integers(0, 1000), min_size=1, max_size=40).filter(any)


@given(sizes=size_lists, share=st.floats(0, 1))
def test_counts_add_up(sizes: list[int], share: float) -> None:
    """Counts add up to the step, and none is more than there is."""
    limits = np.array(sizes, np.int64)
    step = int(share * limits.sum())
    taken = estimate_counts(limits / limits.sum(), limits, step)
    assert taken.sum() == step
    assert np.all((taken >= 0) & (taken <= limits))


def test_a_corpus_that_is_exhausted() -> None:
    """It leaves its share to the others, however far that is from their weights."""
    weights, limits = np.array([0.999, 0.001]), np.array([1, 100_000])
    assert estimate_counts(weights, limits, 50_000).tolist() == [1, 49_999]


@pytest.mark.parametrize("sigma", [0.0, 1.5])
@pytest.mark.parametrize("corpora", [2, 30, 800])
def test_a_blend_from_a_guess_becomes_the_true_one(sigma: float, corpora: int) -> None:
    """A blend from a guess becomes the true one within the run-up that ranks give it."""
    weights = np.random.default_rng(corpora).lognormal(0, sigma, corpora)
    weights /= weights.sum()
    true, guessed = Blender.by_weight(weights), Blender.by_weight(weights)
    guessed.resume(estimate_counts(weights, np.full(corpora, 2**62), 200_000))
    guessed.skip(8192)
    true.skip(208_192)
    assert guessed.taken == true.taken
