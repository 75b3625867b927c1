"""How many epochs and samples a section has; Megatron-Core's own arithmetic."""

from __future__ import annotations

import msgspec
import numpy as np

__all__ = ["Cut", "SectionSize", "epochs_needed", "requested_for", "section_size"]

SEPARATE_THRESHOLD = 0.80


class Cut(msgspec.Struct, frozen=True):
    """How samples are cut from tokens.

    Attributes
    ----------
    sequence_length : int
        Tokens per sample.
    extra_token : bool
        Whether samples overlap by one token.
    keep_partial : bool
        Whether a last sample that is not full is kept (validation only).
    """

    sequence_length: int
    extra_token: bool
    keep_partial: bool


class SectionSize(msgspec.Struct, frozen=True):
    """The sizes of a section.

    Attributes
    ----------
    epochs : int
        Passes over the split's sequences.
    samples : int
        Rows of the sample index, less one.
    separate_samples : int or None
        If the last epoch is shuffled apart, the number of samples before it.
    """

    epochs: int
    samples: int
    separate_samples: int | None


def epochs_needed(requested: int | None, tokens: int, cut: Cut) -> int | None:
    """Return the smallest number of epochs that holds the requested samples.

    Parameters
    ----------
    requested : int or None
        Samples; None asks for one epoch.
    tokens : int
        Tokens of one epoch.
    cut : Cut
        How samples are cut.

    Returns
    -------
    int or None
        None if no number of epochs will do, where Megatron would loop for ever.
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
    """Return the sizes of a section, or None where Megatron would loop for ever.

    Parameters
    ----------
    requested : int or None
        Samples; None asks for one epoch.
    tokens : int
        Tokens of one epoch.
    cut : Cut
        How samples are cut.
    """
    epochs = epochs_needed(requested, tokens, cut)
    if epochs is None:
        return None
    separate = None
    if requested is not None and epochs > 1:
        extra = int(cut.extra_token)
        before_last = ((epochs - 1) * tokens - extra) // cut.sequence_length
        per_epoch = (tokens - extra) // cut.sequence_length
        if requested - before_last < int(SEPARATE_THRESHOLD * per_epoch):
            separate = before_last
    return SectionSize(epochs, samples_in(epochs * tokens, cut), separate)


def requested_for(samples: int, tokens: int, cut: Cut) -> int:
    """Return the smallest request that gives a section of at least `samples` samples.

    Parameters
    ----------
    samples : int
        Samples that the section must have.
    tokens : int
        Tokens of one epoch, at least 1.
    cut : Cut
        How samples are cut.
    """
    low, high = 0, samples + 1
    while low < high:
        middle = (low + high) // 2
        size = section_size(middle, tokens, cut)
        if size is not None and size.samples >= samples:
            high = middle
        else:
            low = middle + 1
    return low
