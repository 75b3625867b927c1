"""Samples of a cache as a torch dataset, equal to Megatron-Core's."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.utils.data import Dataset

from distcache.train.batch import BatchLayout, BatchMemory, BatchRow, attention_masks, rows_of
from distcache.train.reading import SampleReader
from distcache.train.sample_arrays import SampleDataset
from distcache.train.split import OpenSplit


class CachedDataset(SampleDataset, Dataset[dict[str, torch.Tensor]]):
    """The samples of a split, in the order of Megatron's indices.

    ``dataset[i]`` is a sample: a dict of tensors ``tokens``, ``labels`` and ``position_ids``
    (int64), ``loss_mask`` (float32), each of shape (sequence length,), and by the options
    ``attention_mask`` (bool, (1, length, length)), ``cu_seqlens`` (int32, (length + 1,)) and
    ``max_seqlen`` (int32); in a blend also ``dataset_id`` (int16), and where asked ``position``
    (int64), with which `distcache.trace` says what a sample consists of. ``dataset[None]`` is a
    sample without loss, at position -1, with which Megatron pads batches. A `DataLoader` reads
    whole batches at once.

    Each process opens the files when it first uses them; a dataset may be pickled, and used before
    and after a fork.

    Parameters
    ----------
    handle : CacheHandle
        The cache.
    split : str
        "train", "valid" or "test".
    options : SampleOptions
        Rules for making samples.
    number : int
        Number of the validation set, where there are several.
    opened : OpenFiles or None
        The cache, if this process has it open.
    """

    def __getitem__(self, index: int | None) -> dict[str, torch.Tensor]:
        return {name: values[0] for name, values in self._read([index], whole=False).items()}

    def __getitems__(self, indices: Sequence[int | None]) -> list[BatchRow]:
        """Return several samples that are read together; called by `DataLoader`."""
        return rows_of(self._read(indices, whole=True)) if len(indices) else []

    def _read(self, indices: Sequence[int | None], *, whole: bool) -> dict[str, torch.Tensor]:
        """Read samples into new tensors, a row each; `whole` if they stay together as a batch."""
        self._here()  # opens the files in this process, and resets its layouts
        layout = self._layouts.get(len(indices))
        if layout is None:
            shapes = self._shapes(len(indices)).items()
            layout = BatchLayout(
                {name: (size, getattr(torch, kind)) for name, (size, kind) in shapes}
            )
            self._layouts[len(indices)] = layout
        batch = self._memory.tensors(layout, batch=whole)
        arrays = {name: values.numpy() for name, values in batch.items()}
        rows, length = batch["tokens"].shape
        ends: torch.Tensor | None = None
        if self.options.has_attention_mask and self.options.reset_attention_mask:
            ends = torch.empty(rows, length, dtype=torch.uint8)
            arrays["ends"] = ends.numpy()
        facts = self._fill(indices, arrays)
        if self.options.has_attention_mask:
            batch["attention_mask"] = attention_masks(ends, rows, length)
        return {name: torch.from_numpy(values) for name, values in facts.items()} | batch

    def _make_reader(self, split: OpenSplit) -> SampleReader:
        self._memory = BatchMemory()  # of this process
        self._layouts: dict[int, BatchLayout] = {}  # by the number of samples
        return super()._make_reader(split)
