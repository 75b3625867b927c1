"""Masks beside token ids: padding is left out, and a mask that a corpus cannot have is said.

By the names that tokenizers and trainers of Hugging Face and others give: `attention_mask` is 0 for
padding; the loss leaves out what is 0 in `loss_mask`, `assistant_masks` and `completion_mask`, and
-100 in `labels`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

PADDING: Final = "attention_mask"
# The value of each mask that leaves a token out.
LEFT_OUT: Final = {
    PADDING: 0,
    "loss_mask": 0,
    "assistant_masks": 0,
    "completion_mask": 0,
    "labels": -100,
}
LOST: Final = "leaves {} of {} tokens out of the loss, and a corpus has no mask"
IGNORE: Final = "--masks ignore ingests all tokens alike"


def kept_range(masked: Mapping[str, NDArray[np.bool_]], *, ignored: bool) -> tuple[int, int]:
    """Return the tokens [begin, end) of a row that are no padding.

    Parameters
    ----------
    masked : mapping of str to ndarray of bool
        Masks of the row: whether each leaves out each of the tokens.
    ignored : bool
        Whether masks of the loss, and padding between tokens, are ignored.

    Raises
    ------
    ValueError
        If a mask is lost.
    """
    count = len(next(iter(masked.values())))
    begin, end = 0, count
    if (padding := masked.get(PADDING)) is not None:
        kept = np.flatnonzero(~padding)
        begin, end = (int(kept[0]), int(kept[-1]) + 1) if len(kept) else (0, 0)
        if len(kept) < end - begin and not ignored:
            raise ValueError(
                f"{PADDING} is 0 for {end - begin - len(kept)} tokens between others; {IGNORE}"
            )
    for name, left_out in masked.items():
        lost = left_out[begin:end]
        # Labels that are shifted by one have none of the last token, or of the first.
        if name == "labels" and lost.sum() == 1 and (lost[0] or lost[-1]):
            continue
        if name != PADDING and not ignored and lost.any():
            raise ValueError(f"{name} {LOST.format(int(lost.sum()), end - begin)}; {IGNORE}")
    return begin, end


def is_other(name: str, *, ignored: bool) -> bool:
    """Return whether to ignore a column that does not fit the tokens, instead of refusing it.

    Labels may be those of a class.
    """
    return ignored or name == "labels"


def unpadded(ids: list[int], masks: Mapping[str, Any], *, ignored: bool) -> list[int]:
    """Return the ids of a row that are no padding; a mask that is null is missing.

    Raises
    ------
    ValueError
        If a mask is lost, is no list of numbers, or has another length.
    """
    masked: dict[str, NDArray[np.bool_]] = {}
    for name, values in masks.items():
        if values is None:
            continue
        are_numbers = isinstance(values, list) and all(
            type(value) in (int, float, bool) for value in values
        )
        if not are_numbers or len(values) != len(ids):
            if is_other(name, ignored=ignored):
                continue
            found = f"has {len(values)} values" if are_numbers else "is no list of numbers"
            raise ValueError(f"{name} {found} for {len(ids)} tokens; {IGNORE}")
        masked[name] = np.array(values) == LEFT_OUT[name]
    if not any(left_out.any() for left_out in masked.values()):
        return ids
    begin, end = kept_range(masked, ignored=ignored)
    return ids[begin:end]
