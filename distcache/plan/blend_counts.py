"""How many samples a blend draws from each corpus, exactly or estimated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from distcache.kernels import Blender
from distcache.plan.model import SectionPlan
from distcache.plan.sizes import requested_for

HALVINGS: Final = 60


def target(size: int, weight: float) -> int:
    """Return the samples of a corpus that a blend of `size` samples aims at."""
    return math.ceil(size * weight)


def buffered(size: int, weight: float, surplus: float) -> int:
    """Return the samples that are requested of a corpus's section."""
    return math.ceil(math.ceil(size * weight) * (1 + surplus))


def oversampled(
    weights: Sequence[float], size: int, available: Sequence[int], *, fused: bool
) -> list[tuple[int, int]]:
    """Find the corpora from which a sized blend draws more than they have.

    A corpus is only picked while its error is at least the mean of all errors, which is 0. So it
    is taken at most w * (n - 1) + 1 times in n steps; only where a section has less than that is
    the blend played through.

    Parameters
    ----------
    weights : sequence of float
        Normalized.
    size : int
        Samples of the blend.
    available : sequence of int
        Samples of each section.
    fused : bool
        Whether ``weight * step - taken`` is rounded once.

    Returns
    -------
    list of (int, int)
        Corpus, and how many samples the blend asks it for.
    """
    if size == 0:
        return []
    array = np.array(weights, dtype=np.float64)
    most = np.floor(array * (size - 1) * (1 + 1e-9) + 1 + 1e-6)
    have: NDArray[np.int64] = np.array(available, dtype=np.int64)
    if bool(np.all(most <= have)):
        return []
    blender = Blender.by_weight(array, fused)
    blender.skip(size)
    return [
        (corpus, taken) for corpus, taken in enumerate(blender.taken) if taken > available[corpus]
    ]


def smallest_surplus(section: SectionPlan, wanted: int, samples: int) -> float:
    """Return the smallest `mid_level_dataset_surplus` that gives a section enough samples.

    Parameters
    ----------
    section : SectionPlan
        The section that is too small.
    wanted : int
        Samples that the blend asks it for.
    samples : int
        The section's target in the blend, before any surplus; at least 1.

    Returns
    -------
    float
        Exact: the next double below it is too small.
    """
    if section.packed is None:
        needed = requested_for(wanted, section.tokens, section.cut)
    else:  # one row more than whole passes hold
        needed = (-(-wanted // section.packed.rows) - 1) * section.packed.rows + 1
    low, high = 0.0, 2.0 * (needed + 1) / samples
    # Bisect until no double is between: the request never falls as the surplus grows.
    while (middle := (low + high) / 2) not in (low, high):
        if math.ceil(samples * (1 + middle)) >= needed:
            high = middle
        else:
            low = middle
    return high


def estimate_counts(
    weights: NDArray[np.float64], sizes: NDArray[np.int64], step: int
) -> NDArray[np.int64]:
    """Return counts that add up to a step, and are close to those of the greedy blend.

    A corpus is taken when its error, weight x step - taken, is the largest; in the long run that
    is when it reaches a level that hardly moves. So the counts are those with which no error is
    above one level, chosen so that they add up. A blend that continues from there soon merges with
    the true one: a corpus that was taken too early is taken later the next time.

    Parameters
    ----------
    weights : ndarray of float64, shape (corpora,)
        They add up to 1.
    sizes : ndarray of int64, shape (corpora,)
        Greatest number of samples of each corpus.
    step : int
        Number of samples, at most the sum of the sizes.

    Returns
    -------
    ndarray of int64, shape (corpora,)
        Samples of each corpus, from 0 to the sizes; their sum is `step`.
    """
    ideal = weights * step

    def below(level: float) -> NDArray[np.int64]:
        counts = np.floor(ideal - level).astype(np.int64) + 1
        return np.minimum(np.maximum(counts, 0), sizes)

    low, high = -2.0, 2.0  # at 2 no count exceeds its ideal, nor their sum the step
    while below(low).sum() < step:
        low *= 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle).sum() > step else (low, middle)
    taken = below(high)
    missing = step - int(taken.sum())
    errors = np.where(taken < sizes, ideal - taken, -np.inf)
    taken[np.argsort(-errors, kind="stable")[:missing]] += 1
    return taken
