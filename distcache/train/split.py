"""What a split consists of: sections, and the order of their samples; the base of its datasets."""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from distcache.errors import CacheCorrupt, ConfigError
from distcache.plan.orders import ORDERS
from distcache.train.open_files import CacheHandle, OpenFiles


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
        name = section["order"].decode("ascii")
        if name not in ORDERS:
            raise CacheCorrupt(
                f"{cache.path}: has order {name!r}, which this version does not know"
            )
        if ORDERS[name].whole_passes and requested >= 0:
            size = min(size, requested)  # Megatron's datasets have whole epochs
    else:
        views = cache.arrays("blends", int(members["blend"][0]))
        dataset_index = cache.read(views["dataset_index"])
        sample_index = cache.read(views["dataset_sample_index"])
        size = len(dataset_index)
    pairs = zip(members["section"].tolist(), members["source"].tolist(), strict=True)
    return Split(size, list(pairs), dataset_index, sample_index)


class OpenSplit(Protocol):
    """What one process has open of a split; assigned at once, for threads to see all or nothing."""

    @property
    def process(self) -> int:
        """The process that has opened it."""
        ...

    @property
    def split(self) -> Split:
        """Sections and arrays of the split."""
        ...

    @property
    def files(self) -> OpenFiles:
        """The open cache."""
        ...


Opened = TypeVar("Opened", bound=OpenSplit)


class SplitDataset(Generic[Opened]):
    """A split as a map-style dataset, which may be pickled, and used before and after a fork.

    Each process opens the files when it first uses them. Of the attributes of a subclass, those
    whose names begin with an underscore belong to a process, and are not pickled.

    Parameters
    ----------
    handle : CacheHandle
        The cache.
    split : str
        "train", "valid" or "test".
    number : int
        Number of the validation set, where there are several.
    """

    def __init__(self, handle: CacheHandle, split: str, number: int) -> None:
        self.handle = handle
        self.split = split
        self.number = number
        self._open: Opened | None = None

    def _open_in(self, opened: OpenFiles) -> Opened:
        """Look up the arrays of the split in an open cache."""
        raise NotImplementedError

    def _here(self) -> Opened:
        """Return what this process has open; open it first if necessary."""
        here = self._open
        if here is None or here.process != os.getpid():
            here = self._open = self._open_in(self.handle.open())
        return here

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open = None

    def __len__(self) -> int:
        return self._here().split.size

    @property
    def identity(self) -> dict[str, Any]:
        """What identifies the samples: the cache's key, the split, the number of the dataset."""
        key = self._here().files.cache.key
        return {"cache_key": key, "split": self.split, "dataset": self.number}

    def _name(self) -> str:
        return f"split {self.split!r}{f' {self.number}' if self.number else ''}"


def position_of(index: int, size: int, what: str) -> int:
    """Return the position of a sample in a split; negative ones count from the end.

    Raises
    ------
    IndexError
        If there is no such sample.
    """
    position = operator.index(index)
    position += size if position < 0 else 0
    if not 0 <= position < size:
        raise IndexError(f"{what} {index} of {size}")
    return position
