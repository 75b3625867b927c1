"""Blends that ask a section for more samples than it has, and the surplus that would do."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from distcache.kernels import Blender
from distcache.plan.epochs import requested_for
from distcache.plan.model import SectionPlan

__all__ = ["buffered", "oversampled", "smallest_surplus", "target"]


def target(size: int, weight: float) -> int:
    """Return the samples of a corpus that a blend of `size` samples aims at."""
    return math.ceil(size * weight)


def buffered(size: int, weight: float, surplus: float) -> int:
    """Return the samples that a corpus's section is asked for."""
    return math.ceil(math.ceil(size * weight) * (1 + surplus))


def oversampled(
    weights: Sequence[float], size: int, available: Sequence[int]
) -> list[tuple[int, int]]:
    """Find the corpora of a sized blend that are asked for more than they have.

    A corpus is only picked while its error is at least the mean of all errors, which is 0. So it
    is taken at most w * (n - 1) + 1 times in n steps; only where a section has less than that is
    the blend played through.

    Parameters
    ----------
    weights : sequence of float
        Normalised.
    size : int
        Samples of the blend.
    available : sequence of int
        Samples of each section.

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
    blender = Blender.by_weight(array)
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
    needed = requested_for(wanted, section.tokens, section.cut)
    low, high = 0.0, 2.0 * (needed + 1) / samples
    # Bisect until no double lies between: the request never falls as the surplus grows.
    while (middle := (low + high) / 2) not in (low, high):
        if math.ceil(samples * (1 + middle)) >= needed:
            high = middle
        else:
            low = middle
    return high
