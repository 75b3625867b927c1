"""The shards of the samples of a split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distcache.corpus import Idx
from distcache.corpus.mds.shard_table import shards_at
from distcache.kernels import Section, find_shards
from distcache.train.open_files import OpenFiles


@dataclass(frozen=True)
class _Rows:
    """A section of rows, and the index of its corpus."""

    order: NDArray[np.int32]
    idx: Idx
    begins: NDArray[np.int64]


class ShardFinder:
    """Finds the shards of samples, by the arrays of a cache.

    Parameters
    ----------
    opened : OpenFiles
        The cache.
    members : sequence of (int, int)
        Section and source of each dataset of the blend.
    """

    def __init__(self, opened: OpenFiles, members: Sequence[tuple[int, int]]) -> None:
        self._opened = opened
        self._members = members
        self._sections: dict[int, Section | _Rows] = {}

    def find(self, members: Sequence[int], samples: NDArray[np.int64]) -> list[tuple[int, int]]:
        """Return source and shard of all parts of samples, in their order, each once.

        Raises
        ------
        IndexError
            If the arrays lead outside of one another.
        """
        found: dict[tuple[int, int], None] = {}
        for member, sample in zip(members, samples.tolist(), strict=True):
            source = self._members[member][1]
            for shard in self._shards(member, sample):
                found[source, shard] = None
        return list(found)

    def _shards(self, member: int, sample: int) -> list[int]:
        if member not in self._sections:
            self._sections[member] = self._open(member)
        section = self._sections[member]
        if isinstance(section, Section):
            shards, _ = find_shards([section], np.array([sample]))
            return [shard for shard in dict.fromkeys(shards.tolist()) if shard >= 0]
        row = int(section.order[sample])
        begin = int(section.idx.offsets[row])
        return [int(shards_at(section.begins, begin))]

    def _open(self, member: int) -> Section | _Rows:
        row, source = self._members[member]
        cache, idx = self._opened.cache, self._opened.idx_of(source)
        begins = cache.shards_of(source)["base"].astype(np.int64)
        if cache.columns_of(source):
            order = cache.read(cache.arrays("sections", row)["document_index"])
            return _Rows(order, idx, begins)
        return self._opened.section(row, idx, begins if len(begins) else None)
