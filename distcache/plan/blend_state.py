"""How often a greedy blend has probably taken each corpus by some step, not taking the steps."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["likely_taken"]

HALVINGS: Final = 60


def likely_taken(
    weights: NDArray[np.float64], sizes: NDArray[np.int64], step: int
) -> NDArray[np.int64]:
    """Return counts that add up to a step, and are close to those of the greedy blend.

    A corpus is taken when its error, weight x step - taken, is the largest; in the long run that
    is when it reaches a level that hardly moves. So the counts are those with which no error is
    above one level, chosen so that they add up. A blend that goes on from there soon does what the
    true one does, since a corpus that has been taken too soon is taken later the next time.

    Parameters
    ----------
    weights : ndarray of float64, shape (corpora,)
        They add up to 1.
    sizes : ndarray of int64, shape (corpora,)
        How often each corpus may be taken.
    step : int
        At most the sum of the sizes.

    Returns
    -------
    ndarray of int64, shape (corpora,)
        From 0 to the sizes; their sum is `step`.
    """
    ideal = weights * step

    def below(level: float) -> NDArray[np.int64]:
        counts = np.floor(ideal - level).astype(np.int64) + 1
        return np.minimum(np.maximum(counts, 0), sizes)

    low, high = -2.0, 2.0
    while below(low).sum() < step:
        low *= 2
    while below(high).sum() > step:
        high *= 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle).sum() > step else (low, middle)
    taken = below(high)
    missing = step - int(taken.sum())
    errors = np.where(taken < sizes, ideal - taken, -np.inf)
    taken[np.argsort(-errors, kind="stable")[:missing]] += 1
    return taken
