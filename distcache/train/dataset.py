"""Samples of a cache as a torch dataset, equal to Megatron-Core's."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from distcache.errors import ConfigError
from distcache.kernels import SampleRules
from distcache.train.batch import BatchRow, rows_of
from distcache.train.location import Location, Opened, open_location
from distcache.train.masks import attention_masks
from distcache.train.options import SampleOptions
from distcache.train.reading import SplitReader

__all__ = ["CachedDataset", "dataset_count"]

NO_TOKEN = np.iinfo(np.int64).min


def dataset_count(opened: Opened, split: str) -> int:
    """Return how many datasets a split has: one, or one for each validation set, or none."""
    members = opened.cache.table("members")
    blends = members["blend"][members["split"] == split.encode("ascii")]
    return int(np.count_nonzero(blends < 0)) or int(blends.size > 0)


class CachedDataset(Dataset[Any]):
    """The samples of a split, in the order of Megatron's indices.

    ``dataset[i]`` is a sample: a dict of tensors ``tokens``, ``labels`` and ``position_ids``
    (int64), ``loss_mask`` (float32), each of shape (sequence length,), and by the options
    ``attention_mask`` (bool, (1, length, length)), ``cu_seqlens`` (int32, (length + 1,)) and
    ``max_seqlen`` (int32); in a blend also ``dataset_id`` (int16). ``dataset[None]`` is a sample
    without loss, with which Megatron fills up batches. A `DataLoader` reads whole batches at once.

    It opens files when it is first used, in each process by itself; it may be pickled, and used
    before and after a fork.

    Parameters
    ----------
    location : Location
        The cache.
    split : str
        "train", "valid" or "test".
    options : SampleOptions
        What is made of tokens.
    number : int
        Which of several validation sets.
    opened : Opened or None
        What this process has open at that location.
    """

    def __init__(
        self,
        location: Location,
        split: str,
        options: SampleOptions,
        number: int = 0,
        opened: Opened | None = None,
    ) -> None:
        self.location = location
        self.split = split
        self.options = options
        self.number = number
        self._process = -1
        if opened is not None:
            self._open(opened)

    def __getstate__(self) -> tuple[Location, str, SampleOptions, int]:
        return self.location, self.split, self.options, self.number

    def __setstate__(self, state: tuple[Location, str, SampleOptions, int]) -> None:
        self.location, self.split, self.options, self.number = state
        self._process = -1

    def __len__(self) -> int:
        self._open()
        return self._size

    def __getitem__(self, index: int | None) -> dict[str, Any]:
        batch = self._read([index])
        return {name: values[0] for name, values in batch.items()} | self._id_of(index)

    def __getitems__(self, indices: Sequence[int | None]) -> list[BatchRow]:
        """Return several samples that are read at once, as `DataLoader` asks for them."""
        return rows_of(self._read(indices, with_ids=True)) if len(indices) else []

    def _id_of(self, index: int | None) -> dict[str, Any]:
        if self._dataset_index is None:
            return {}
        return {"dataset_id": self._dataset_index[self._position(index)]}

    def _position(self, index: int | None) -> int:
        """Return where a sample is in the split; that of None is the first."""
        position = 0 if index is None else int(index)
        if position < 0:
            position += self._size
        if not 0 <= position < self._size:
            raise IndexError(f"sample {index} of {self._size} in split {self.split}")
        return position

    def _read(
        self, indices: Sequence[int | None], *, with_ids: bool = False
    ) -> dict[str, torch.Tensor]:
        """Read samples into new tensors, with a row each."""
        self._open()
        positions = np.array([self._position(index) for index in indices], np.int64)
        ids: NDArray[np.int16] | None = None
        if self._dataset_index is None or self._sample_index is None:
            members, samples = [0] * len(positions), positions
        else:
            ids = self._dataset_index[positions]
            members, samples = ids.tolist(), self._sample_index[positions]
        batch = self._new_batch(len(positions))
        arrays = {_KERNEL_NAMES[name]: values.numpy() for name, values in batch.items()}
        ends = self._new_ends(len(positions))
        if ends is not None:
            arrays["ends"] = ends.numpy()
        self._reader.read(members, samples, arrays)
        for row, index in enumerate(indices):
            if index is None:
                batch["loss_mask"][row] = 0.0
        if self.options.has_attention_mask:
            batch["attention_mask"] = attention_masks(ends, len(positions), self._length)
        if ids is not None and with_ids:
            batch = {"dataset_id": torch.from_numpy(ids), **batch}
        return batch

    def _new_batch(self, rows: int) -> dict[str, torch.Tensor]:
        length = self._length
        batch = {
            "tokens": torch.empty(rows, length, dtype=torch.int64),
            "labels": torch.empty(rows, length, dtype=torch.int64),
            "loss_mask": torch.empty(rows, length, dtype=torch.float32),
            "position_ids": torch.empty(rows, length, dtype=torch.int64),
        }
        if self.options.inter_document_masking:
            batch["cu_seqlens"] = torch.empty(rows, length + 1, dtype=torch.int32)
            batch["max_seqlen"] = torch.empty(rows, dtype=torch.int32)
        return batch

    def _new_ends(self, rows: int) -> torch.Tensor | None:
        """Return where the kernel says which tokens end documents, if masks need it."""
        if not (self.options.has_attention_mask and self.options.reset_attention_mask):
            return None
        return torch.empty(rows, self._length, dtype=torch.uint8)

    def _open(self, opened: Opened | None = None) -> None:
        """Open the cache, unless this process has."""
        if self._process == os.getpid():
            return
        opened = opened or open_location(self.location)
        cache = opened.cache
        members = cache.table("members")
        members = members[members["split"] == self.split.encode("ascii")]
        alone = members[members["blend"] < 0]
        if not len(members) or self.number >= max(len(alone), 1):
            raise ConfigError(
                f"{cache.path}: has {dataset_count(opened, self.split)} dataset(s) in split "
                f"{self.split!r}, number {self.number} is not one"
            )
        self._dataset_index = self._sample_index = None
        if len(alone):
            members = alone[self.number : self.number + 1]
            section = int(members["section"][0])
            self._size = int(cache.table("sections")["samples"][section])
        else:
            views = cache.arrays("blends", int(members["blend"][0]))
            self._dataset_index = cache.read(views["dataset_index"])
            self._sample_index = cache.read(views["dataset_sample_index"])
            self._size = len(self._dataset_index)
        rows = zip(members["section"].tolist(), members["source"].tolist(), strict=True)
        options = self.options
        end = NO_TOKEN if options.eod is None else options.eod
        rules = SampleRules(options.padding, end, options.eod_mask_loss, options.reset_position_ids)
        self._reader = SplitReader(opened, list(rows), rules)
        self._length = cache.sequence_length
        self._process = os.getpid()


_KERNEL_NAMES = {
    "tokens": "tokens",
    "labels": "labels",
    "loss_mask": "loss_mask",
    "position_ids": "positions",
    "cu_seqlens": "bounds",
    "max_seqlen": "longest",
}
