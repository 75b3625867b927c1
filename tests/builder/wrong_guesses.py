"""Guesses at blends from which they do not become true."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def guess_badly(weights: Any, sizes: NDArray[np.int64], step: int) -> NDArray[np.int64]:
    """Return counts of which one is far too large."""
    del weights
    taken = np.zeros(len(sizes), np.int64)
    for place in np.argsort(sizes, kind="stable")[::-1]:
        taken[place] = min(step, sizes[place])
        step -= int(taken[place])
    return taken
