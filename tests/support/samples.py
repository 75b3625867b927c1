"""The samples of a split as training reads them, without torch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from distcache.kernels import SampleRules
from distcache.train.open import OpenCache
from distcache.train.reading import SampleReader
from distcache.train.split import OpenSplit


def members_of(opened: OpenCache, split: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the member of each sample of a split, and the sample in it."""
    cache = opened.cache
    rows = cache.table("members")
    rows = rows[rows["split"] == split.encode()]
    blend = int(rows["blend"][0])
    if blend < 0:
        view = cache.arrays("sections", int(rows["section"][0]))["sample_index"]
        samples = np.arange(max(view.shape[0] - 1, 0))
        return np.zeros_like(samples), samples
    views = cache.arrays("blends", blend)
    datasets = cache.read(views["dataset_index"]).astype(np.int64)
    return datasets, cache.read(views["dataset_sample_index"])


def tokens_of(opened: OpenCache, split: str = "train", batch: int = 1) -> list[list[int]]:
    """Return the tokens of all samples of a split, read in batches of a size."""
    reader = SampleReader(OpenSplit(opened._files, split), SampleRules(-1, -1, False, False))
    chosen, samples = members_of(opened, split)
    found: list[list[int]] = []
    for begin in range(0, len(samples), batch):
        some = slice(begin, begin + batch)
        shape = (len(samples[some]), opened.cache.sequence_length)
        kinds = {"tokens": "i8", "labels": "i8", "loss_mask": "f4", "positions": "i8"}
        arrays = {name: np.empty(shape, kind) for name, kind in kinds.items()}
        reader.read(chosen[some].tolist(), np.ascontiguousarray(samples[some]), arrays)
        found += arrays["tokens"].tolist()
    return found
