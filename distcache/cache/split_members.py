"""The sections that a split of a cache consists of, and which sample is at which position."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distcache.cache.contents import Cache
from distcache.errors import CacheCorrupt, ConfigError
from distcache.plan.orders import ORDERS


def dataset_count(cache: Cache, split: str) -> int:
    """Return how many datasets a split has: one, or one for each validation set, or none."""
    members = cache.table("members")
    blends = members["blend"][members["split"] == split.encode("ascii", "replace")]
    return int(np.count_nonzero(blends < 0)) or int(blends.size > 0)


class SplitMembers:
    """A split of a cache, or one of its validation sets.

    Parameters
    ----------
    cache : Cache
        The open cache.
    split : str
        "train", "valid" or "test".
    number : int
        Number of the validation set, where there are several.

    Attributes
    ----------
    split : str
        Name of the split.
    size : int
        Number of samples.
    pairs : list of (int, int)
        Section and source of each dataset of the blend, or of the only one.
    weights : ndarray of float64, shape (datasets,)
        Weight of each dataset, as it was given; NaN without weights.

    Raises
    ------
    ConfigError
        If the split, or a dataset of this number, does not exist.
    """

    def __init__(self, cache: Cache, split: str, number: int = 0) -> None:
        members = cache.table("members")
        members = members[members["split"] == split.encode("ascii", "replace")]
        alone = members[members["blend"] < 0]
        if not len(members) or not 0 <= number < max(len(alone), 1):
            if not (count := dataset_count(cache, split)):
                raise ConfigError(
                    f"{cache.path}: has no split {split!r}; it has {', '.join(cache.splits)}"
                )
            raise ConfigError(
                f"{cache.path}: split {split!r} has {count} datasets, counted from 0, and no "
                f"number {number}"
            )
        self.cache = cache
        self.split = split
        self._blend: tuple[NDArray[np.int16], NDArray[np.int64]] | None = None
        if len(alone):
            members = alone[number : number + 1]
            self.size = _size_alone(cache, members[0])
        else:
            views = cache.arrays("blends", int(members["blend"][0]))
            datasets = cache.read(views["dataset_index"])
            self._blend = (datasets, cache.read(views["dataset_sample_index"]))
            self.size = len(datasets)
        self.pairs = list(zip(members["section"].tolist(), members["source"].tolist(), strict=True))
        self.weights: NDArray[np.float64] = members["weight"]

    @property
    def keeps_partial(self) -> bool:
        """Whether the last sample of a section may be shorter than the others."""
        drops = self.cache.identity["drop_last_partial_validation_sequence"]
        return self.split == "valid" and not drops

    @property
    def is_blend(self) -> bool:
        """Whether samples are of several datasets."""
        return self._blend is not None

    def look_up(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
        """Return the member of the blend, and the sample in it, at each position of the split."""
        if self._blend is None:
            return np.zeros(len(positions), np.int16), positions
        datasets, samples = self._blend
        return datasets[positions], samples[positions]

    def between(self, begin: int, end: int) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
        """Return the same of positions [begin, end), of a blend without a copy."""
        if self._blend is None:
            return np.zeros(end - begin, np.int16), np.arange(begin, end, dtype=np.int64)
        datasets, samples = self._blend
        return datasets[begin:end], samples[begin:end]

    def pair(self, number: int) -> tuple[int, int]:
        """Return section and source of a member.

        Raises
        ------
        CacheCorrupt
            If there is no such member.
        """
        if not 0 <= number < len(self.pairs):
            raise CacheCorrupt(
                f"{self.cache.path}: a dataset index names dataset {number} of "
                f"{len(self.pairs)}; see `distcache verify`"
            )
        return self.pairs[number]


def _size_alone(cache: Cache, member: Any) -> int:
    """Return the samples of a section that is a dataset by itself."""
    section = cache.table("sections")[int(member["section"])]
    size, requested = int(section["samples"]), int(member["requested"])
    name = section["order"].decode("ascii", "replace")
    if name not in ORDERS:
        raise CacheCorrupt(f"{cache.path}: has order {name!r}, which this version does not know")
    # Megatron's datasets have whole passes.
    return min(size, requested) if ORDERS[name].whole_passes and requested >= 0 else size
