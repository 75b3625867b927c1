"""Masks beside token ids: padding is left out, and which tokens have a loss goes into the mask.

By the names that tokenizers and trainers of Hugging Face and others give: `attention_mask` is 0
for padding; there is no loss where `loss_mask`, `assistant_masks` or `completion_mask` is 0, or
`labels` is -100. Labels are the tokens (TRL, axolotl, litgpt), or each the next token (NeMo
Automodel, torchtune): which of both, the numbers say. In packed rows of Megatron-Bridge, known by
`seq_start_id`, `loss_mask` is about the next token of the same sequence (megatron-bridge 0.6.2,
data/packing/algorithms.py).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

PADDING: Final = "attention_mask"
LABELS: Final = "labels"
PACKED_MASK: Final = "loss_mask"  # of a packed row, whose sequences begin where STARTS says
STARTS: Final = "seq_start_id"
# The value of each mask that leaves a token out.
LEFT_OUT: Final = {
    PADDING: 0,
    "loss_mask": 0,
    "assistant_masks": 0,
    "completion_mask": 0,
    LABELS: -100,
}
IGNORE: Final = "--masks ignore ingests all tokens alike"
NEITHER: Final = f"labels are neither the tokens nor the next ones; {IGNORE}"


class Rows(NamedTuple):
    """Rows of token ids, one after another."""

    ids: NDArray[Any]
    counts: NDArray[np.int64]  # of each row
    # whether each token begins a sequence of a packed row; None if each row is a sequence
    first: NDArray[np.bool_] | None = None

    @property
    def row_of(self) -> NDArray[np.int64]:
        """Row of each token."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @property
    def sequence_of(self) -> NDArray[np.int64]:
        """Sequence of each token."""
        return self.row_of if self.first is None else np.cumsum(self.first) - 1


class MaskedRows(NamedTuple):
    """What the masks of rows say of each of their tokens."""

    kept: NDArray[np.bool_]  # whether it is no padding
    losses: NDArray[np.uint8] | None  # whether it has a loss; None if all that are kept have one
    wrong: dict[int, str]  # problems of rows


class LabelShift:
    """Whether labels are the tokens, or each the next one: the same in all rows of an ingest."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: int | None = None  # places that a label is before its token

    def losses(self, rows: Rows, labels: NDArray[Any]) -> tuple[NDArray[np.bool_], dict[int, str]]:
        """Return which tokens have a loss by their labels, and the problems of rows.

        Labels of rows that have none are NaN.
        """
        without = np.isnan(labels)
        has_label = ~without & (labels != LEFT_OUT[LABELS])
        ends = np.cumsum(rows.counts)
        last = np.zeros(len(labels), bool)
        last[ends[rows.counts > 0] - 1] = True
        following = np.append(rows.ids[1:], 0)
        row_of = rows.row_of
        wrong = [  # rows of which a label is not the token, or not the next one
            np.unique(row_of[has_label & (labels != rows.ids)]),
            np.unique(row_of[has_label & (labels != following) & ~last]),
        ]
        with self._lock:
            shift = self._known
            if shift is None:
                shift = int(len(wrong[0]) > 0 and not len(wrong[1]))
                if bool(len(wrong[0])) != bool(len(wrong[1])):
                    self._known = shift
        problems = dict.fromkeys(wrong[shift].tolist(), NEITHER)
        if shift:
            has_label[1:] = has_label[:-1] & ~last[:-1]
            has_label[:1] = False
        return has_label | without, problems


def masked(
    rows: Rows, masks: Mapping[str, NDArray[Any]], shift: LabelShift, *, ignored: bool
) -> MaskedRows:
    """Return what masks say of rows.

    Parameters
    ----------
    rows : Rows
        The tokens.
    masks : mapping of str to ndarray, shape (tokens,)
        Masks by their names.
    shift : LabelShift
        Shift of the labels of the whole ingest.
    ignored : bool
        Whether masks of the loss, and padding between tokens, are ignored.
    """
    kept = np.ones(len(rows.ids), bool)
    wrong: dict[int, str] = {}
    if (padding := masks.get(PADDING)) is not None:
        kept, wrong = _without_padding(rows, padding != 0, ignored=ignored)
    if ignored:
        return MaskedRows(kept, None, wrong)
    losses = np.ones(len(rows.ids), bool)
    for name, values in masks.items():
        if name == LABELS:
            by_labels, problems = shift.losses(rows, np.where(kept, values, LEFT_OUT[LABELS]))
            losses &= by_labels
            wrong = problems | wrong
        elif name == PACKED_MASK and rows.first is not None:
            losses[1:] &= values[:-1] != LEFT_OUT[name]
            losses[rows.first] = False
        elif name != PADDING:
            losses &= values != LEFT_OUT[name]
    _complete(rows, kept, losses)
    return MaskedRows(kept, None if losses[kept].all() else losses.astype(np.uint8), wrong)


def _complete(rows: Rows, kept: NDArray[np.bool_], losses: NDArray[np.bool_]) -> None:
    """Give the first token of a sequence a loss if all others have one: nothing predicts it."""
    left_out = kept & ~losses
    sequence_of = rows.sequence_of
    count = int(sequence_of.max(initial=-1)) + 1
    alone = np.bincount(sequence_of[left_out], minlength=count) == 1
    several = np.bincount(sequence_of[kept], minlength=count) > 1
    places = np.flatnonzero(left_out)
    places = places[(alone & several)[sequence_of[places]]]
    first = np.full(count, -1)
    inside = np.flatnonzero(kept)[::-1]
    first[sequence_of[inside]] = inside
    losses[places[first[sequence_of[places]] == places]] = True


def _without_padding(
    rows: Rows, mask: NDArray[np.bool_], *, ignored: bool
) -> tuple[NDArray[np.bool_], dict[int, str]]:
    """Return the tokens of rows that are no padding, and the rows with padding between others."""
    kept = np.ones(len(mask), bool)
    wrong: dict[int, str] = {}
    ends = np.cumsum(rows.counts)
    for row in np.unique(rows.row_of[~mask]).tolist():
        begin, end = int(ends[row] - rows.counts[row]), int(ends[row])
        own = begin + np.flatnonzero(mask[begin:end])
        first, last = (int(own[0]), int(own[-1]) + 1) if len(own) else (end, end)
        holes = last - first - len(own)
        if holes and not ignored:
            wrong[row] = f"{PADDING} is 0 for {holes} tokens between others; {IGNORE}"
        kept[begin:first] = kept[last:end] = False
    return kept, wrong


def is_other(name: str, *, ignored: bool) -> bool:
    """Return whether to ignore a column that does not fit the tokens, instead of refusing it.

    Labels may be those of a class.
    """
    return ignored or name == LABELS


def readable(ids: list[int], masks: Mapping[str, Any], *, ignored: bool) -> dict[str, list[float]]:
    """Return the masks of a row that have a number for each token; one that is null is missing.

    Raises
    ------
    ValueError
        If another is no list of numbers, or has another length.
    """
    found: dict[str, list[float]] = {}
    for name, values in masks.items():
        if values is None:
            continue
        are_numbers = isinstance(values, list) and all(
            type(value) in (int, float, bool) for value in values
        )
        if are_numbers and len(values) == len(ids):
            found[name] = list(map(float, values))
        elif not is_other(name, ignored=ignored):
            what = f"has {len(values)} values" if are_numbers else "is no list of numbers"
            raise ValueError(f"{name} {what} for {len(ids)} tokens; {IGNORE}")
    return found
