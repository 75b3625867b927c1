"""Slow and obvious versions of the kernels, in NumPy and Python."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray


def legacy_draws(seed: int, first: int, count: int) -> list[int]:
    """Draw from [0, first], [0, first - 1], ... as NumPy's legacy generator does: mask, reject."""
    state = np.random.RandomState(seed)
    draws: list[int] = []
    while len(draws) < count:
        highest = first - len(draws)
        mask = (1 << highest.bit_length()) - 1
        word = int(state.randint(0, 2**32, dtype=np.uint64))
        if highest >= 2**32:
            word = word << 32 | int(state.randint(0, 2**32, dtype=np.uint64))
        if word & mask <= highest:
            draws.append(word & mask)
    return draws


def sample_rows(lengths: Sequence[int], sequence_length: int, extra: int) -> list[tuple[int, int]]:
    """Find each boundary's document by searching the running sums of lengths."""
    ends = np.cumsum(np.array(lengths, np.int64))
    total = int(ends[-1]) if len(ends) else 0
    rows = []
    sample = 1
    while (token := sample * sequence_length - 1 + extra) < total:
        position = int(np.searchsorted(ends, token, side="right"))
        before = int(ends[position] - lengths[position])
        rows.append((position, token - before + 1 - extra))
        sample += 1
    return rows


def weighted_blend(
    weights: NDArray[np.float64], size: int, *, fused: bool = False
) -> tuple[list[int], list[int]]:
    """Take the corpus with the largest error, which may be rounded but once, in every step."""
    taken = np.zeros(len(weights))
    corpora, samples = [], []
    for step in range(size):
        factor = max(step, 1)
        errors = weights * float(factor) - taken
        if fused:
            exact = zip(map(Fraction, weights), map(Fraction, taken), strict=True)
            errors = np.array([float(weight * factor - count) for weight, count in exact])
        best = int(np.argmax(errors))
        corpora.append(best)
        samples.append(int(taken[best]))
        taken[best] += 1
    return corpora, samples


def exhaustive_blend(sizes: NDArray[np.int64]) -> tuple[list[int], list[int]]:
    """Take the corpus with the largest error among those that are not spent."""
    weights = sizes / sizes.sum()
    taken = np.zeros(len(sizes))
    corpora, samples = [], []
    for step in range(int(sizes.sum())):
        error = weights * max(float(step), 1.0) - taken
        error[taken == sizes] = -np.inf
        best = int(np.argmax(error))
        corpora.append(best)
        samples.append(int(taken[best]))
        taken[best] += 1
    return corpora, samples
