"""Where the tokens of a corpus are: in its `.bin`, or in the raw shards that make it up."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, overload

import numpy as np
from numpy.typing import NDArray

from distcache.cache import Cache
from distcache.corpus import bin_path
from distcache.errors import NotReady
from distcache.node.ahead.protocol import Source

File = tuple[str, int]
"""A path, and the bytes that the file must have."""
NO_FILE: Final = ("", 0)  # of a part without tokens


@dataclass(frozen=True, eq=False)
class TokenPlaces:
    """The files with the tokens of a corpus."""

    files: Sequence[File]  # the `.bin`; or the shards, in their order
    # bytes of the `.bin` at which the shards begin; None if there is a `.bin`
    begins: NDArray[np.int64] | None = None
    # the `.bin`, if the node's fetcher reads it, and not this process
    fetched: Source | None = None


def find_tokens(cache: Cache, source: int, prefix: str, size: int) -> TokenPlaces:
    """Find the tokens of a corpus.

    Parameters
    ----------
    cache : Cache
        Cache with the table of its shards.
    source : int
        Number of the corpus.
    prefix : str
        Prefix of the corpus; a `.bin` there is preferred to shards.
    size : int
        Bytes of the `.bin`.

    Raises
    ------
    NotReady
        If a shard is compressed, and the `.bin` is not there.
    """
    shards = cache.shards_of(source)
    path = bin_path(prefix)
    if not len(shards) or os.path.lexists(path):
        return TokenPlaces([(path, size)])
    packed = np.flatnonzero(shards["codec"])
    if len(packed):
        raise NotReady(
            f"{cache.shard_path(shards[packed[0]])}: is compressed, and training decompresses "
            "nothing; run `distcache localize` on this node, or `distcache index unpack` once"
        )
    return TokenPlaces(_ShardFiles(cache, shards), shards["base"].astype(np.int64))


class _ShardFiles(Sequence[File]):
    """The files of raw shards, whose paths are decoded when they are asked for."""

    def __init__(self, cache: Cache, shards: NDArray[Any]) -> None:
        self._cache = cache
        self._shards = shards

    def __len__(self) -> int:
        return len(self._shards)

    @overload
    def __getitem__(self, shard: int) -> File: ...
    @overload
    def __getitem__(self, shard: slice) -> Sequence[File]: ...
    def __getitem__(self, shard: int | slice) -> File | Sequence[File]:
        if isinstance(shard, slice):
            return [self[place] for place in range(*shard.indices(len(self)))]
        row = self._shards[shard]
        return self._cache.shard_path(row), int(row["raw_size"])


def cut_by_files(files: Sequence[Sequence[File]], most: int) -> list[range]:
    """Cut samples into ranges that need at most so many different files, or are one sample.

    Parameters
    ----------
    files : sequence of sequence of File
        Files of the parts of each sample.
    most : int
        Files that may be open for a range.
    """
    found: list[range] = []
    begin, needed = 0, set[File]()
    for sample, own in enumerate(files):
        more = needed.union(own)
        if sample > begin and len(more) > most:
            found.append(range(begin, sample))
            begin, more = sample, set(own)
        needed = more
    if begin < len(files):
        found.append(range(begin, len(files)))
    return found
