"""What a process has open of a split, and the datasets of splits."""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from distcache.cache.deal import Deal, DealtSplit
from distcache.cache.mapped_section import map_section
from distcache.cache.split_members import SplitMembers
from distcache.corpus import Idx
from distcache.kernels import Section
from distcache.node.ahead.client import FetchClient
from distcache.node.ahead.protocol import Source
from distcache.plan.identity import growth_key
from distcache.train.fetching import FetchedRanges
from distcache.train.open_files import CacheHandle, OpenFiles
from distcache.train.token_places import TokenPlaces


class OpenMember(NamedTuple):
    """An open corpus of a split."""

    # rows of their tables
    section: int
    source: int
    idx: Idx
    places: TokenPlaces


class OpenSplit(SplitMembers):
    """What a process has open of a split, or of one of its validation sets.

    Parameters
    ----------
    files : OpenFiles
        The open cache.
    split : str
        "train", "valid" or "test".
    number : int
        Number of the validation set, where there are several.
    deal : Deal or None
        Shape of the steps whose samples are dealt.

    Attributes
    ----------
    process : int
        The process that has opened it.
    files : OpenFiles
        The open cache.

    Raises
    ------
    ConfigError
        If the split, or a dataset of this number, does not exist, or it cannot be dealt.
    """

    def __init__(
        self, files: OpenFiles, split: str, number: int = 0, deal: Deal | None = None
    ) -> None:
        super().__init__(files.cache, split, number)
        self.process = os.getpid()
        self.files = files
        self._members: dict[int, OpenMember] = {}
        self._lock = threading.Lock()
        self._deal = deal
        self._dealt = self._deal_steps()

    def _deal_steps(self) -> DealtSplit | None:
        return None if self._deal is None else DealtSplit(self, self._deal, self._section_of)

    def _section_of(self, number: int) -> Section:
        member = self.member(number)
        return map_section(self.cache, member.section, member.idx)

    def positions(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions of the samples that training takes at places of its order.

        Raises
        ------
        CacheCorrupt
            If arrays lead outside of one another.
        """
        return places if self._dealt is None else self._dealt.positions(places)

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

    def require_intact(self) -> None:
        """Refuse what was read from a damaged mapping; all files are reopened next time.

        Raises
        ------
        CacheCorrupt, CorpusError
            If the cache or an index was cut short, or its filesystem has failed.
        """
        self._dealt = self._deal_steps()  # whose sections map the old files
        with self._lock:
            members, self._members = self._members, {}
        self.files.cache.require_intact()
        for member in members.values():
            member.idx.require_intact()


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
    deal : Deal or None
        Shape of the steps whose samples are dealt to ranks.
    """

    def __init__(
        self,
        handle: CacheHandle,
        split: str,
        number: int,
        opened: OpenFiles | None,
        deal: Deal | None = None,
    ) -> None:
        self.handle = handle
        self.split = split
        self.number = number
        self.deal = deal
        self._reader: Reader | None = None
        if opened is not None:
            self._reader = self._make_reader(OpenSplit(opened, split, number, deal))

    def _make_reader(self, split: OpenSplit) -> Reader:
        """Return what reads an open split."""
        raise NotImplementedError

    def _here(self) -> Reader:
        """Return what this process has open; open it first if necessary."""
        here = self._reader
        if here is None or here.split.process != os.getpid():
            split = OpenSplit(self.handle.open(), self.split, self.number, self.deal)
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
        any, and how its steps are dealt, if they are.
        """
        cache = self._here().split.files.cache
        found = {"cache_key": cache.key, "split": self.split, "dataset": self.number}
        growth = growth_key(cache.identity)
        found |= {} if growth is None else {"growth": growth}
        return found if self.deal is None else found | {"deal": str(self.deal)}

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
        places = [position_of(index, here.split.size, "sample") for index in indices]
        positions = here.split.positions(np.array(places, np.int64))
        return here.fetched_ranges(*here.split.look_up(positions))

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
