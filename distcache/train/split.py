"""What a split consists of: its sections, and the order of their samples in its blend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distcache.errors import ConfigError
from distcache.train.open_files import OpenFiles


def dataset_count(opened: OpenFiles, split: str) -> int:
    """Return how many datasets a split has: one, or one for each validation set, or none."""
    members = opened.cache.table("members")
    blends = members["blend"][members["split"] == split.encode("ascii")]
    return int(np.count_nonzero(blends < 0)) or int(blends.size > 0)


@dataclass(frozen=True)
class Split:
    """A split, or one of its validation sets."""

    size: int  # samples
    # section and source of each dataset of the blend, or of the only one
    members: Sequence[tuple[int, int]]
    # arrays of the blend; None for a section that stands alone
    dataset_index: NDArray[np.int16] | None
    sample_index: NDArray[np.int64] | None

    def look_up(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
        """Return the member of the blend, and the sample in it, at each position of the split."""
        if self.dataset_index is None or self.sample_index is None:
            return np.zeros(len(positions), np.int16), positions
        return self.dataset_index[positions], self.sample_index[positions]


def find_split(opened: OpenFiles, split: str, number: int) -> Split:
    """Look up the arrays of a split in an open cache.

    Raises
    ------
    ConfigError
        If there is no such split, or not so many datasets in it.
    """
    cache = opened.cache
    members = cache.table("members")
    members = members[members["split"] == split.encode("ascii")]
    alone = members[members["blend"] < 0]
    if not len(members) or number >= max(len(alone), 1):
        raise ConfigError(
            f"{cache.path}: has {dataset_count(opened, split)} datasets in split "
            f"{split!r}, number {number} is not one"
        )
    dataset_index = sample_index = None
    if len(alone):
        members = alone[number : number + 1]
        section = cache.table("sections")[int(members["section"][0])]
        size, requested = int(section["samples"]), int(members["requested"][0])
        if section["order"] != b"megatron" and requested >= 0:
            size = min(size, requested)  # Megatron's datasets have whole epochs
    else:
        views = cache.arrays("blends", int(members["blend"][0]))
        dataset_index = cache.read(views["dataset_index"])
        sample_index = cache.read(views["dataset_sample_index"])
        size = len(dataset_index)
    pairs = zip(members["section"].tolist(), members["source"].tolist(), strict=True)
    return Split(size, list(pairs), dataset_index, sample_index)
