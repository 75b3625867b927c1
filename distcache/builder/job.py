"""What every step of a build needs to know."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from distcache.builder.reuse import Reusable
from distcache.cache import Cache, open_cache
from distcache.corpus.corpus import open_examined
from distcache.corpus.idx import Idx
from distcache.corpus.mds.shard_table import read_table
from distcache.option import Option
from distcache.plan.layout import ArrayPlace, Layout
from distcache.plan.model import Plan, SectionPlan
from distcache.ranks.communicator import Communicator
from distcache.ranks.progress import Stopwatch
from distcache.storage.units import parse_positive_size

Digests = dict[int, dict[str, str]]
"""The digests of arrays, by index into `Plan.items` and by array name."""


MemoryLimit = Annotated[
    int | None,
    Option("Memory per rank, for example 8G.", "--memory-limit", parse_positive_size),
]
ReusedCaches = Annotated[
    tuple[Path, ...],
    Option("Another cache, from which sections with the same keys are copied.", "--reuse"),
]


class BuildOptions(msgspec.Struct, frozen=True):
    """How to build; none of it changes the cache.

    Attributes
    ----------
    threads : int
        Threads of each rank.
    """

    threads: int = 1
    reuse: ReusedCaches = ()
    memory_limit: MemoryLimit = None
    # so that a job builds what was submitted
    required_key: Annotated[
        str | None, Option("End with exit code 7 if the key differs.", "--require-key")
    ] = None


class Record(msgspec.Struct, frozen=True):
    """A finished section or blend, as a line of a rank's journal."""

    item: int  # index into `Plan.items`
    digests: dict[str, str]  # the digest of each of its arrays by name, in hexadecimal


@dataclass
class Job:
    """One build."""

    communicator: Communicator  # group of all ranks
    options: BuildOptions
    # items to build, and the place of each array
    plan: Plan
    layout: Layout
    final: Path  # path of the cache
    reused: Mapping[int, Reusable]  # items that are copied from another cache
    watch: Stopwatch  # receives the progress of this rank
    digests: Digests = field(default_factory=dict)  # digests of all finished items, of all ranks
    unfinished: str = ""  # path of the unfinished file, once its workspace is claimed

    def places(self, item: int) -> dict[str, ArrayPlace]:
        """Return the places of the arrays of an item, by name."""
        return {place.name: place for place in self.layout.arrays[item]}

    def idx(self, section: SectionPlan) -> Idx:
        """Return the mapped index of a section's corpus."""
        return open_examined(self.plan.sources[section.source])

    def shards_of(self, section: SectionPlan) -> NDArray[np.int64]:
        """Return the first sequence of each shard of a section's corpus, if it consists of them."""
        facts = self.plan.sources[section.source]
        if facts.shards is None:
            return np.empty(0, np.int64)
        firsts: NDArray[np.int64] = read_table(facts.prefix).rows["first_sequence"].astype(np.int64)
        return firsts

    @functools.cached_property
    def other_caches(self) -> dict[str, Cache]:
        """The caches that items are reused from, by path."""
        return {path: open_cache(path) for path in {found.path for found in self.reused.values()}}

    def describe(self, item: int) -> str:
        """Name an item for messages."""
        entry = self.plan.items[item]
        if isinstance(entry, SectionPlan):
            prefix = self.plan.sources[entry.source].prefix
            return f"the section of {prefix}, sequences {entry.begin} to {entry.end}"
        return f"the blend of split {entry.split}"

    def bytes_of(self, item: int) -> int:
        """Return the bytes of all arrays of an item."""
        return sum(place.nbytes for place in self.layout.arrays[item])
