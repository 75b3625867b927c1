"""How a split string becomes ranges of sequences; Megatron-Core's own arithmetic."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np

from distcache.errors import ConfigError
from distcache.plan.config import SPLITS

__all__ = ["WHOLE", "Bookends", "normalise", "sequence_range", "split_matrix"]

Bookends = tuple[float, float]
WHOLE: Bookends = (0.0, 1.0)


def normalise(weights: list[float] | list[int]) -> list[float]:
    """Divide weights by their NumPy float64 sum."""
    array = np.array(weights, dtype=np.float64)
    with np.errstate(all="ignore"):
        normalised: list[float] = (array / np.sum(array)).tolist()
    return normalised


def split_matrix(split: str) -> list[Bookends | None]:
    """Parse a split string such as "99,1,0" into the book-ends of each split.

    Parameters
    ----------
    split : str
        Every run of digits and points is a number; up to three, padded with zeros.

    Returns
    -------
    list of (float, float) or None
        For train, valid and test; None where a split does not exist. The first book-end is the
        integer 0, as in Megatron's descriptions.

    Raises
    ------
    ConfigError
        If the string does not give three shares that add up to more than nothing.
    """
    try:
        shares = [float(number) for number in re.findall(r"[.0-9]+", split)]
    except ValueError as error:
        raise ConfigError(f"$.split: {split!r} is not a list of numbers: {error}") from error
    if len(shares) > len(SPLITS):
        raise ConfigError(f"$.split: {split!r} has {len(shares)} shares, expected at most 3")
    shares += [0.0] * (len(SPLITS) - len(shares))
    if not 0 < sum(shares) < math.inf:
        raise ConfigError(f"$.split: {split!r} adds up to nothing, expected for example 99,1,0")
    ends = itertools.accumulate(normalise(shares), initial=0)
    return [(begin, end) if end > begin else None for begin, end in itertools.pairwise(ends)]


def sequence_range(bookends: Bookends, sequences: int) -> tuple[int, int]:
    """Return the sequences [begin, end) of a split, with Python's rounding of both ends."""
    begin, end = (round(bookend * float(sequences)) for bookend in bookends)
    return begin, end
