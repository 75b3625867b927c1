"""Attention masks as Megatron-Core's `_get_ltor_masks_and_position_ids` makes them."""

from __future__ import annotations

import functools

import torch

__all__ = ["attention_masks"]


@functools.lru_cache(maxsize=4)
def _causal(length: int) -> torch.Tensor:
    return torch.ones(length, length, dtype=torch.bool).triu(1)


def attention_masks(ends: torch.Tensor | None, rows: int, length: int) -> torch.Tensor:
    """Return the masks of a batch: true where a token may not attend.

    Parameters
    ----------
    ends : Tensor of uint8, shape (rows, length), or None
        Where documents end, if tokens behind an end may not attend to it or to what is before it.
    rows, length : int
        The batch's shape.

    Returns
    -------
    Tensor of bool, shape (rows, 1, length, length)
        A new one.
    """
    if ends is None:
        return _causal(length).expand(rows, 1, length, length).clone()
    documents = ends.cumsum(1) - ends  # an end still belongs to what it ends
    apart = documents[:, None, :, None] != documents[:, None, None, :]
    return apart.logical_or_(_causal(length))
