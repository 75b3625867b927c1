"""A batch that was read as one, which torch's `default_collate` need not put together again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

__all__ = ["BatchRow", "rows_of"]


class BatchRow(Mapping[str, Any]):
    """One sample of a batch: views of its tensors.

    Parameters
    ----------
    batch : dict of str to Tensor
        The whole batch, a row per sample.
    row : int
        Which.
    """

    __slots__ = ("batch", "row")

    def __init__(self, batch: dict[str, torch.Tensor], row: int) -> None:
        self.batch = batch
        self.row = row

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.batch[name][self.row]

    def __iter__(self) -> Iterator[str]:
        return iter(self.batch)

    def __len__(self) -> int:
        return len(self.batch)


def rows_of(batch: dict[str, torch.Tensor]) -> list[BatchRow]:
    """Return the samples of a batch."""
    return [BatchRow(batch, row) for row in range(len(next(iter(batch.values()))))]


def _collate(rows: Sequence[BatchRow], *, collate_fn_map: Any = None) -> dict[str, torch.Tensor]:
    """Return the batch that the rows are all of; put others together as torch does."""
    del collate_fn_map
    batch = rows[0].batch
    whole = len(rows) == len(next(iter(batch.values())))
    if whole and all(row.batch is batch and row.row == i for i, row in enumerate(rows)):
        return batch
    collated: dict[str, torch.Tensor] = default_collate([dict(row) for row in rows])
    return collated


default_collate_fn_map[BatchRow] = _collate
