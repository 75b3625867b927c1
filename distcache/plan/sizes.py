"""Splits, passes and samples: how large each section is."""

from __future__ import annotations

import bisect
import itertools
import math
import re

import msgspec
import numpy as np

from distcache.errors import ConfigError
from distcache.plan.config import SPLITS

Bookends = tuple[float, float]
WHOLE: Bookends = (0.0, 1.0)
SEPARATE_THRESHOLD = 0.80


def normalize(weights: list[float] | list[int]) -> list[float]:
    """Divide weights by their NumPy float64 sum."""
    array = np.array(weights, dtype=np.float64)
    with np.errstate(all="ignore"):
        normalized: list[float] = (array / np.sum(array)).tolist()
    return normalized


def split_matrix(split: str) -> list[Bookends | None]:
    """Parse a split string such as "99,1,0" into the book-ends of each split.

    Parameters
    ----------
    split : str
        Every run of digits and points is a number; up to three, padded with zeros.

    Returns
    -------
    list of (float, float) or None
        Ranges of train, valid and test; None where a split does not exist. The first
        book-end is the integer 0, as in Megatron's descriptions.

    Raises
    ------
    ConfigError
        If the string does not give three shares that add up to more than nothing.
    """
    if not split.isascii():  # Megatron ignores the digits of other scripts
        raise ConfigError(f"$.split: {split!r} has characters beyond ASCII, expected 99,1,0")
    try:
        shares = [float(number) for number in re.findall(r"[.0-9]+", split)]
    except ValueError as error:
        raise ConfigError(f"$.split: {split!r} is not a list of numbers: {error}") from error
    if len(shares) > len(SPLITS):
        raise ConfigError(f"$.split: {split!r} has {len(shares)} shares, expected at most 3")
    shares += [0.0] * (len(SPLITS) - len(shares))
    if not 0 < sum(shares) < math.inf:
        raise ConfigError(f"$.split: {split!r} adds up to nothing, expected for example 99,1,0")
    ends = itertools.accumulate(normalize(shares), initial=0)
    return [(begin, end) if end > begin else None for begin, end in itertools.pairwise(ends)]


def sequence_range(bookends: Bookends, sequences: int) -> tuple[int, int]:
    """Return the sequences [begin, end) of a split, with Python's rounding of both ends."""
    begin, end = (round(bookend * float(sequences)) for bookend in bookends)
    return begin, end


class Cut(msgspec.Struct, frozen=True):
    """How samples are cut from tokens."""

    sequence_length: int  # tokens per sample
    extra_token: bool  # whether samples overlap by one token
    keep_partial: bool  # whether a last sample that is not full is kept (validation only)


class SectionSize(msgspec.Struct, frozen=True):
    """The sizes of a section."""

    passes: int  # passes over the split's sequences
    samples: int  # rows of the sample index, less one
    # if the last pass is shuffled apart, the number of samples before it
    separate_samples: int | None


def packed_size(requested: int | None, rows: int) -> SectionSize | None:
    """Return the sizes of a packed section, or None if no number of passes will do.

    Parameters
    ----------
    requested : int or None
        Rows; None asks for one pass.
    rows : int
        Rows of a pass.
    """
    if not rows and requested:
        return None
    passes = max(-(-(requested or 0) // max(rows, 1)), 1)
    return SectionSize(passes, passes * rows, None)


def passes_needed(requested: int | None, tokens: int, cut: Cut) -> int | None:
    """Return the smallest number of passes that holds the requested samples.

    Parameters
    ----------
    requested : int or None
        Samples; None asks for one pass.
    tokens : int
        Tokens of one pass.
    cut : Cut
        Rules for cutting samples.

    Returns
    -------
    int or None
        None if no number of passes will do, where Megatron would loop indefinitely.
    """
    if requested is None:
        return 1
    needed = requested * cut.sequence_length + int(cut.extra_token)
    if tokens == 0:
        return 1 if needed == 0 else None
    return max(1, -(-needed // tokens))


def samples_in(tokens: int, cut: Cut) -> int:
    """Return how many samples a run of tokens gives.

    With `keep_partial` the ceiling is computed in 32-bit float, as Megatron's C++ does.
    """
    usable = tokens - int(cut.extra_token)
    if not cut.keep_partial:
        return max(usable // cut.sequence_length, 0)
    quotient = np.int64(usable).astype(np.float32) / np.float32(cut.sequence_length)
    return max(int(np.ceil(quotient)), 0)


def section_size(requested: int | None, tokens: int, cut: Cut) -> SectionSize | None:
    """Return the sizes of a section, or None where Megatron would never end.

    Parameters
    ----------
    requested : int or None
        Samples; None asks for one pass.
    tokens : int
        Tokens of one pass.
    cut : Cut
        Rules for cutting samples.
    """
    passes = passes_needed(requested, tokens, cut)
    if passes is None:
        return None
    separate = None
    if requested is not None and passes > 1:
        extra = int(cut.extra_token)
        before_last = ((passes - 1) * tokens - extra) // cut.sequence_length
        per_pass = (tokens - extra) // cut.sequence_length
        if requested - before_last < int(SEPARATE_THRESHOLD * per_pass):
            separate = before_last
    return SectionSize(passes, samples_in(passes * tokens, cut), separate)


def requested_for(samples: int, tokens: int, cut: Cut) -> int:
    """Return the smallest request that gives a section of at least `samples` samples.

    Parameters
    ----------
    samples : int
        Samples that the section must have.
    tokens : int
        Tokens of one pass, at least 1.
    cut : Cut
        Rules for cutting samples.
    """

    def suffices(request: int) -> bool:
        size = section_size(request, tokens, cut)
        return size is not None and size.samples >= samples

    return bisect.bisect_left(range(samples + 1), True, key=suffices)
