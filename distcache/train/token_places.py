"""Where the tokens of corpora, and of samples of them, are: in which bytes of which files."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from distcache.cache import Cache
from distcache.corpus import bin_path
from distcache.corpus.mds.shard_table import shards_at
from distcache.corpus.mds.stored_shard import indexed_shard
from distcache.errors import NotReady
from distcache.node.ahead.protocol import Source
from distcache.storage.files import FileVersion
from distcache.train.token_files import File


def _nothing(_: int) -> None:
    """Return that the fetcher reads nothing instead of a file."""


@dataclass(frozen=True, eq=False)
class TokenPlaces:
    """The files with the tokens of a corpus."""

    files: Sequence[File]  # the `.bin`; or the shards, in their order
    # bytes of the `.bin` at which the shards begin; None if there is a `.bin`
    begins: NDArray[np.int64] | None = None
    # what the node's fetcher reads instead of a file, by its number: nothing, by default
    fetched: Callable[[int], Source | None] = _nothing
    loss: File | None = None  # the loss mask: the shared file, or the node's copy of an object

    @property
    def are_fetched(self) -> bool:
        """Whether the fetcher reads any of the files."""
        return self.fetched is not _nothing


def find_tokens(
    cache: Cache, source: int, prefix: str, size: int, *, unpacked_ahead: bool = False
) -> TokenPlaces:
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
    unpacked_ahead : bool
        Whether the node's fetcher unpacks its compressed shards.

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
    if len(packed) and not unpacked_ahead:
        raise NotReady(
            f"{cache.shard_path(shards[packed[0]])}: is compressed, and training decompresses "
            "nothing; run `distcache localize` on this node without --bin none, or build from a "
            "copy that `distcache materialize` makes of the corpus"
        )
    fetched = _unpacked_shards(cache, shards) if len(packed) else _nothing
    return TokenPlaces(_ShardFiles(cache, shards), shards["base"].astype(np.int64), fetched)


def _unpacked_shards(cache: Cache, shards: NDArray[Any]) -> Callable[[int], Source | None]:
    """Return the function to what the fetcher unpacks of a corpus: its compressed shards."""

    @functools.cache
    def fetched(shard: int) -> Source | None:
        stored, digest = indexed_shard(shards[shard], cache.shard_path(shards[shard]))
        version = FileVersion(stored.size, 0, 0)
        packed = Source(stored.path, version, stored.codec, stored.raw_size, digest)
        return packed if stored.codec else None

    return fetched


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


class Located(NamedTuple):
    """Where the parts of samples are: each is bytes of one file."""

    files: list[File]  # the files
    sources: list[Source | None]  # what the node's fetcher reads instead of each
    numbers: NDArray[np.int64]  # file of each part, (parts,); -1 for a part without bytes
    begins: NDArray[np.int64]  # first byte in the file, (parts,)
    sizes: NDArray[np.int64]  # bytes, (parts,); 0 if they are not known
    bounds: NDArray[np.int64]  # the first part of each sample, then their number


def whole_files(places: Sequence[TokenPlaces]) -> Located:
    """Return the `.bin` of each sample as its one part, of no known bytes."""
    numbers: dict[File, int] = {}
    own = [numbers.setdefault(known.files[0], len(numbers)) for known in places]
    unknown = np.zeros(len(places), np.int64)
    bounds = np.arange(len(places) + 1)
    return Located(
        list(numbers), [None] * len(numbers), np.array(own, np.int64), unknown, unknown, bounds
    )


def locate(
    places: Sequence[TokenPlaces],
    begins: NDArray[np.int64],
    sizes: NDArray[np.int64],
    bounds: NDArray[np.int64],
) -> Located:
    """Find the files of ranges of `.bin` files, which may consist of shards.

    Parameters
    ----------
    places : sequence of TokenPlaces
        Places of the tokens of each sample's corpus.
    begins, sizes : ndarray of int64, shape (parts,)
        First byte in the `.bin`, and bytes.
    bounds : ndarray of int64, shape (samples + 1,)
        The first part of each sample, then their number.

    Raises
    ------
    IndexError
        If a part begins before the first shard.
    """
    known_files: dict[tuple[File, Source | None], int] = {}

    def number_of(known: TokenPlaces, file: int) -> int:
        key = known.files[file], known.fetched(file)
        return known_files.setdefault(key, len(known_files))

    sample_of = np.repeat(np.arange(len(places)), np.diff(bounds))
    numbers, offsets = np.full(len(begins), -1), begins.copy()
    for known in dict.fromkeys(places):
        own = np.array([other is known for other in places])[sample_of]
        if known.begins is None:
            numbers[own] = number_of(known, 0)
            continue
        own &= sizes > 0
        shards = shards_at(known.begins, begins[own])
        if shards.min(initial=0) < 0:
            raise IndexError("a part of a sample begins before the first shard")
        offsets[own] -= known.begins[shards]
        used, which = np.unique(shards, return_inverse=True)
        numbers[own] = np.array([number_of(known, s) for s in used.tolist()], np.int64)[which]
    files, sources = zip(*known_files, strict=True) if known_files else ((), ())
    return Located(list(files), list(sources), numbers, offsets, sizes, bounds)


def cut_by_files(where: Located, most: int) -> Iterator[tuple[slice, Located]]:
    """Cut samples into runs that need at most so many files, or are one sample.

    Yields
    ------
    slice
        The samples.
    Located
        Parts of these, with no other files.
    """
    samples = len(where.bounds) - 1
    if len(where.files) <= most:
        yield slice(0, samples), where
        return
    begin, needed = 0, set[int]()
    for sample in range(samples + 1):
        own = set[int]()
        if sample < samples:
            own.update(where.numbers[where.bounds[sample] : where.bounds[sample + 1]].tolist())
        if sample > begin and (sample == samples or len((needed | own) - {-1}) > most):
            yield slice(begin, sample), _samples_of(where, begin, sample)
            begin, needed = sample, set()
        needed |= own


def _samples_of(where: Located, begin: int, end: int) -> Located:
    bounds = where.bounds[begin : end + 1]
    parts = slice(int(bounds[0]), int(bounds[-1]))
    used, which = np.unique(where.numbers[parts], return_inverse=True)
    without = int(len(used) > 0 and used[0] < 0)  # parts without bytes stay at -1
    return Located(
        [where.files[number] for number in used[without:].tolist()],
        [where.sources[number] for number in used[without:].tolist()],
        which.astype(np.int64) - without,
        where.begins[parts],
        where.sizes[parts],
        bounds - bounds[0],
    )
