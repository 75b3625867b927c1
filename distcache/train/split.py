"""What a process has open of a split, and the datasets of splits."""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from distcache.corpus import Idx
from distcache.errors import CacheCorrupt, ConfigError
from distcache.node.ahead.client import FetchClient
from distcache.node.ahead.protocol import Source
from distcache.plan.identity import growth_key
from distcache.plan.orders import ORDERS
from distcache.train.fetching import FetchedRanges
from distcache.train.open_files import CacheHandle, OpenFiles
from distcache.train.token_files import TokenPlaces


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
            known = self._members.get(number)
            # A copy has its name when it is complete.
            if known is None or known.places.has_copy():
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
            members, self._members = self._members, {}
        self.files.cache.require_intact()
        for member in members.values():
            member.idx.require_intact()


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

    def fetched_ranges(
        self, members: NDArray[np.int16], samples: NDArray[np.int64]
    ) -> FetchedRanges:
        """Return what the node's fetcher has to read of samples."""
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
        """What identifies the samples: the cache's key, the split, the number of the dataset.

        And the key that it shares with caches that begin with the same samples, if there may be
        any.
        """
        cache = self._here().split.files.cache
        found = {"cache_key": cache.key, "split": self.split, "dataset": self.number}
        growth = growth_key(cache.identity)
        return found if growth is None else found | {"growth": growth}

    @property
    def continued(self) -> tuple[str, int] | None:
        """Key of the cache that this one continues, and the samples that were consumed of it."""
        found = self._here().split.files.cache.identity.get("continue")
        return None if found is None or self.split != "train" else (found["key"], found["samples"])

    @property
    def fetch_client(self) -> FetchClient | None:
        """The client of the node's fetcher, if it reads anything of the cache."""
        return self._here().split.files.fetch_client

    @property
    def fetched_sources(self) -> list[Source]:
        """The `.bin` files that the fetcher reads."""
        return self._here().split.files.fetched_sources

    def fetched_ranges(self, indices: Sequence[int]) -> FetchedRanges:
        """Return what the fetcher has to read of samples, in their order."""
        here = self._here()
        positions = [position_of(index, here.split.size, "sample") for index in indices]
        return here.fetched_ranges(*here.split.look_up(np.array(positions, np.int64)))

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
