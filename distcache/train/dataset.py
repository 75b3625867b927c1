"""Samples of a cache as a torch dataset, equal to Megatron-Core's."""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from dataclasses import dataclass
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
from distcache.train.memory import BatchMemory
from distcache.train.options import SampleOptions
from distcache.train.reading import SplitReader

__all__ = ["CachedDataset", "dataset_count"]

NO_TOKEN = np.iinfo(np.int64).min


def dataset_count(opened: Opened, split: str) -> int:
    """Return how many datasets a split has: one, or one for each validation set, or none."""
    members = opened.cache.table("members")
    blends = members["blend"][members["split"] == split.encode("ascii")]
    return int(np.count_nonzero(blends < 0)) or int(blends.size > 0)


@dataclass(frozen=True)
class _Open:
    """What one process has open; made whole, so that threads see all of it or nothing."""

    process: int
    size: int
    length: int
    dataset_index: NDArray[np.int16] | None
    sample_index: NDArray[np.int64] | None
    reader: SplitReader

    def look_up(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
        """Return the member of the blend, and the sample in it, at each position of the split."""
        if self.dataset_index is None or self.sample_index is None:
            return np.zeros(len(positions), np.int16), positions
        return self.dataset_index[positions], self.sample_index[positions]


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
        self._memory = BatchMemory()
        self._open = None if opened is None else self._open_in(opened)

    def __getstate__(self) -> tuple[Location, str, SampleOptions, int]:
        return self.location, self.split, self.options, self.number

    def __setstate__(self, state: tuple[Location, str, SampleOptions, int]) -> None:
        self.location, self.split, self.options, self.number = state
        self._memory = BatchMemory()
        self._open = None

    def __len__(self) -> int:
        return self._here().size

    def __repr__(self) -> str:
        number = f" {self.number}" if self.number else ""
        here = self._here()
        return f"<split {self.split!r}{number}: {here.size} samples of {here.length} tokens>"

    @property
    def identity(self) -> dict[str, Any]:
        """What these samples are of: the key of the cache, the split, and which dataset of it."""
        key = self._here().reader.key
        return {"cache_key": key, "split": self.split, "dataset": self.number}

    def __getitem__(self, index: int | None) -> dict[str, Any]:
        return {name: values[0] for name, values in self._read([index], whole=False).items()}

    def __getitems__(self, indices: Sequence[int | None]) -> list[BatchRow]:
        """Return several samples that are read at once, as `DataLoader` asks for them."""
        return rows_of(self._read(indices, whole=True)) if len(indices) else []

    def _read(self, indices: Sequence[int | None], *, whole: bool) -> dict[str, torch.Tensor]:
        """Read samples into new tensors, with a row each; `whole` if they remain together."""
        here = self._here()
        positions = np.array([self._position(index, here.size) for index in indices], np.int64)
        members, samples = here.look_up(positions)
        batch = self._new_batch(len(positions), here.length, whole=whole)
        arrays = {_KERNEL_NAMES[name]: values.numpy() for name, values in batch.items()}
        ends = self._new_ends(len(positions), here.length)
        if ends is not None:
            arrays["ends"] = ends.numpy()
        here.reader.read(members.tolist(), samples, arrays)
        for row, index in enumerate(indices):
            if index is None:
                batch["loss_mask"][row] = 0.0
        if self.options.has_attention_mask:
            batch["attention_mask"] = attention_masks(ends, len(positions), here.length)
        if here.dataset_index is not None:
            batch = {"dataset_id": torch.from_numpy(members), **batch}
        return batch

    def _position(self, index: int | None, size: int) -> int:
        """Return where a sample is in the split; that of None is the first."""
        position = 0 if index is None else operator.index(index)
        if position < 0:
            position += size
        if not 0 <= position < size:
            raise IndexError(f"sample {index} of {size} in split {self.split}")
        return position

    def _new_batch(self, rows: int, length: int, *, whole: bool) -> dict[str, torch.Tensor]:
        shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "tokens": ((rows, length), torch.int64),
            "labels": ((rows, length), torch.int64),
            "loss_mask": ((rows, length), torch.float32),
            "position_ids": ((rows, length), torch.int64),
        }
        if self.options.inter_document_masking:
            shapes["cu_seqlens"] = ((rows, length + 1), torch.int32)
            shapes["max_seqlen"] = ((rows,), torch.int32)
        return self._memory.tensors(shapes, batch=whole)

    def _new_ends(self, rows: int, length: int) -> torch.Tensor | None:
        """Return where the kernel says which tokens end documents, if masks need it."""
        if not (self.options.has_attention_mask and self.options.reset_attention_mask):
            return None
        return torch.empty(rows, length, dtype=torch.uint8)

    def _here(self) -> _Open:
        """Return what this process has open, and open it first if it has not."""
        here = self._open
        if here is None or here.process != os.getpid():
            here = self._open = self._open_in(open_location(self.location))
        return here

    def _open_in(self, opened: Opened) -> _Open:
        """Look up what belongs to the split in an open cache."""
        cache = opened.cache
        members = cache.table("members")
        members = members[members["split"] == self.split.encode("ascii")]
        alone = members[members["blend"] < 0]
        if not len(members) or self.number >= max(len(alone), 1):
            raise ConfigError(
                f"{cache.path}: has {dataset_count(opened, self.split)} dataset(s) in split "
                f"{self.split!r}, number {self.number} is not one"
            )
        dataset_index = sample_index = None
        if len(alone):
            members = alone[self.number : self.number + 1]
            size = int(cache.table("sections")["samples"][int(members["section"][0])])
        else:
            views = cache.arrays("blends", int(members["blend"][0]))
            dataset_index = cache.read(views["dataset_index"])
            sample_index = cache.read(views["dataset_sample_index"])
            size = len(dataset_index)
        rows = zip(members["section"].tolist(), members["source"].tolist(), strict=True)
        reader = SplitReader(opened, list(rows), self._rules())
        length = cache.sequence_length
        return _Open(os.getpid(), size, length, dataset_index, sample_index, reader)

    def _rules(self) -> SampleRules:
        options = self.options
        end = NO_TOKEN if options.eod is None else options.eod
        return SampleRules(options.padding, end, options.eod_mask_loss, options.reset_position_ids)


_KERNEL_NAMES = {
    "tokens": "tokens",
    "labels": "labels",
    "loss_mask": "loss_mask",
    "position_ids": "positions",
    "cu_seqlens": "bounds",
    "max_seqlen": "longest",
}
