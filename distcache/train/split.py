"""What a process has open of a split, and the datasets of splits."""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from distcache.corpus import Idx
from distcache.corpus.mds.shard_table import shards_at
from distcache.errors import CacheCorrupt, ConfigError
from distcache.kernels import Section, find_shards
from distcache.plan.orders import ORDERS
from distcache.train.open_files import CacheHandle, OpenFiles
from distcache.train.token_files import TokenPlaces

Result = TypeVar("Result")


def dataset_count(opened: OpenFiles, split: str) -> int:
    """Return how many datasets a split has: one, or one for each validation set, or none."""
    members = opened.cache.table("members")
    blends = members["blend"][members["split"] == split.encode("ascii")]
    return int(np.count_nonzero(blends < 0)) or int(blends.size > 0)


class OpenMember(NamedTuple):
    """An open corpus of a split."""

    # rows of their tables
    section: int
    source: int
    idx: Idx
    places: TokenPlaces


class OpenSplit:
    """What a process has open of a split, or of one of its validation sets.

    Parameters
    ----------
    files : OpenFiles
        The open cache.
    split : str
        "train", "valid" or "test".
    number : int
        Number of the validation set, where there are several.

    Attributes
    ----------
    process : int
        The process that has opened it.
    size : int
        Number of samples.
    pairs : list of (int, int)
        Section and source of each dataset of the blend, or of the only one.

    Raises
    ------
    ConfigError
        If the split, or a dataset of this number, does not exist.
    """

    def __init__(self, files: OpenFiles, split: str, number: int = 0) -> None:
        cache = files.cache
        members = cache.table("members")
        members = members[members["split"] == split.encode("ascii")]
        alone = members[members["blend"] < 0]
        if not len(members) or number >= max(len(alone), 1):
            count = dataset_count(files, split)
            raise ConfigError(
                f"{cache.path}: split {split!r} has {count} datasets, numbered from 0; there is no "
                f"number {number}"
            )
        self.process = os.getpid()
        self.files = files
        self._name = (split, number)
        self._blend: tuple[NDArray[np.int16], NDArray[np.int64]] | None = None
        if len(alone):
            members = alone[number : number + 1]
            self.size = _size_alone(files, members[0])
        else:
            views = cache.arrays("blends", int(members["blend"][0]))
            datasets = cache.read(views["dataset_index"])
            self._blend = (datasets, cache.read(views["dataset_sample_index"]))
            self.size = len(datasets)
        self.pairs = list(zip(members["section"].tolist(), members["source"].tolist(), strict=True))
        self._members: dict[int, OpenMember] = {}
        self._orders: dict[int, tuple[Section | NDArray[np.int32], NDArray[np.int64]]] = {}
        self._lock = threading.Lock()

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

    def member(self, number: int) -> OpenMember:
        """Return a corpus of the split, which is opened once.

        Raises
        ------
        CacheCorrupt
            If there is no such member.
        NotReady, CorpusError
            If its index or its tokens are missing, or of another corpus.
        """
        with self._lock:
            if number not in self._members:
                section, source = self.pair(number)
                places, idx = self.files.tokens_of(source), self.files.idx_of(source)
                self._members[number] = OpenMember(section, source, idx, places)
            return self._members[number]

    def pair(self, number: int) -> tuple[int, int]:
        """Return section and source of a member, which need not be open.

        Raises
        ------
        CacheCorrupt
            If there is no such member.
        """
        if not 0 <= number < len(self.pairs):
            raise CacheCorrupt(
                f"{self.files.cache.path}: a dataset index names dataset {number} of "
                f"{len(self.pairs)}; see `distcache verify`"
            )
        return self.pairs[number]

    def require_intact(self) -> None:
        """Refuse what was read from a damaged mapping; all files are reopened next time.

        Raises
        ------
        CacheCorrupt, CorpusError
            If the cache or an index was cut short, or its filesystem has failed.
        """
        with self._lock:
            members, self._members, self._orders = self._members, {}, {}
        self.files.cache.require_intact()
        for member in members.values():
            member.idx.require_intact()

    def shards_of(
        self, members: NDArray[np.int16], samples: NDArray[np.int64]
    ) -> list[tuple[int, int]]:
        """Return source and shard of all parts of samples, in their order, each once.

        Raises
        ------
        CacheCorrupt
            If the arrays lead outside of one another.
        """
        found: dict[tuple[int, int], None] = {}
        try:
            for number, sample in zip(members.tolist(), samples.tolist(), strict=True):
                source = self.member(number).source
                for shard in self._shards(number, sample):
                    found[source, shard] = None
        except IndexError as wrong:
            self.require_intact()
            raise CacheCorrupt(
                f"{self.files.cache.path}: {wrong}; see `distcache verify`"
            ) from wrong
        return list(found)

    def _shards(self, number: int, sample: int) -> list[int]:
        """Return the shards of the parts of a sample, though a `.bin` may be preferred to them."""
        section, source, idx, _ = self.member(number)
        found = self._orders.get(number)
        if found is None:
            cache = self.files.cache
            begins = cache.shards_of(source)["base"].astype(np.int64)
            order: Section | NDArray[np.int32] = (
                cache.read(cache.arrays("sections", section)["document_index"])
                if cache.columns_of(source)
                else self.files.section(section, idx, begins if len(begins) else None)
            )
            found = self._orders[number] = order, begins
        order, begins = found
        if isinstance(order, Section):
            shards, _ = find_shards([order], np.array([sample]))
            return [shard for shard in dict.fromkeys(shards.tolist()) if shard >= 0]
        return [int(shards_at(begins, int(idx.offsets[int(order[sample])])))]

    def read_unpacked(
        self,
        positions: NDArray[np.int64],
        members: NDArray[np.int16],
        samples: NDArray[np.int64],
        action: Callable[[], Result],
    ) -> Result:
        """Read samples, once the shards that a feeder unpacks, if any, are there.

        Parameters
        ----------
        positions : ndarray of int64, shape (samples,)
            Positions in the split.
        members, samples : ndarray, shape (samples,)
            Members and samples, from `look_up`.
        action : callable
            Reads them.
        """
        gate = self.files.gate
        if gate is None or not len(positions):
            return action()
        gate.publish(*self._name, int(positions.min()))
        needed = self.shards_of(members, samples)
        return gate.read([pair for pair in needed if pair[0] in self.files.windows_of], action)


def _size_alone(files: OpenFiles, member: Any) -> int:
    """Return the samples of a section that is a dataset by itself."""
    section = files.cache.table("sections")[int(member["section"])]
    size, requested = int(section["samples"]), int(member["requested"])
    name = section["order"].decode("ascii")
    if name not in ORDERS:
        raise CacheCorrupt(
            f"{files.cache.path}: has order {name!r}, which this version does not know"
        )
    # Megatron's datasets have whole epochs.
    return min(size, requested) if ORDERS[name].whole_passes and requested >= 0 else size


class HasSplit(Protocol):
    """What reads an open split. Assigned in one step: a thread sees all of it or nothing."""

    @property
    def split(self) -> OpenSplit:
        """The split."""
        ...


Reader = TypeVar("Reader", bound=HasSplit)


class SplitDataset(Generic[Reader]):
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
    opened : OpenFiles or None
        The cache, if this process has it open.
    """

    def __init__(
        self, handle: CacheHandle, split: str, number: int, opened: OpenFiles | None
    ) -> None:
        self.handle = handle
        self.split = split
        self.number = number
        self._reader: Reader | None = None
        if opened is not None:
            self._reader = self._make_reader(OpenSplit(opened, split, number))

    def _make_reader(self, split: OpenSplit) -> Reader:
        """Return what reads an open split."""
        raise NotImplementedError

    def _here(self) -> Reader:
        """Return what this process has open; open it first if necessary."""
        here = self._reader
        if here is None or here.split.process != os.getpid():
            split = OpenSplit(self.handle.open(), self.split, self.number)
            here = self._reader = self._make_reader(split)
        return here

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._reader = None

    def __len__(self) -> int:
        return self._here().split.size

    @property
    def identity(self) -> dict[str, Any]:
        """What identifies the samples: the cache's key, the split, the number of the dataset."""
        key = self._here().split.files.cache.key
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
