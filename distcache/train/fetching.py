"""What the node's fetcher has to read of samples, and reading it."""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from distcache.corpus.mds.shard_table import shards_at
from distcache.node.ahead.client import FetchClient
from distcache.node.ahead.protocol import Source
from distcache.storage.files import read_range
from distcache.train.token_files import TokenPlaces

MOST_ENDED: Final = 256  # readings
MOST_SHARDS: Final = 56  # that each reader has open, unless one batch needs more
Result = TypeVar("Result")
Reading = tuple[int, int]
"""A stream, and the number of a reading that was announced in it."""


class FetchedRanges(NamedTuple):
    """What the fetcher has to read of samples."""

    sources: list[Source]
    ranges: NDArray[np.int64]  # shape (ranges, 3): number of the source, first byte, bytes
    ends: NDArray[np.int64]  # number of ranges up to the end of each sample


def no_ranges(samples: int) -> FetchedRanges:
    """Return that the fetcher reads nothing of samples."""
    return FetchedRanges([], np.empty((0, 3), np.int64), np.zeros(samples, np.int64))


def ranges_at(
    places: Sequence[TokenPlaces],
    begins: NDArray[np.int64],
    sizes: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> FetchedRanges:
    """Return what the fetcher has to read of ranges of `.bin` files.

    Parameters
    ----------
    places : sequence of TokenPlaces
        Places of the tokens of each sample's corpus.
    begins, sizes : ndarray of int64, shape (ranges,)
        First byte in the `.bin`, and bytes.
    ends : ndarray of int64, shape (samples,)
        Number of ranges up to the end of each sample.
    """
    numbers: dict[Source, int] = {}
    sample_of = np.repeat(np.arange(len(places)), np.diff(ends, prepend=0))
    alone = [
        -1
        if known.begins is not None or (source := known.fetched(0)) is None
        else numbers.setdefault(source, len(numbers))
        for known in places
    ]
    owner, first = np.array(alone, np.int64)[sample_of], begins.copy()
    for known in {known for known in places if known.are_fetched}:
        if known.begins is None:
            continue
        own = np.array([other is known for other in places])[sample_of]
        files = shards_at(known.begins, begins[own])
        first[own] -= known.begins[files]
        used, which = np.unique(files, return_inverse=True)
        sources = [known.fetched(file) for file in used.tolist()]
        of_file = [-1 if s is None else numbers.setdefault(s, len(numbers)) for s in sources]
        owner[own] = np.array(of_file, np.int64)[which]
    chosen = owner >= 0
    ranges = np.column_stack((owner, first, sizes))[chosen]
    counts = np.concatenate(([0], np.cumsum(chosen)))
    return FetchedRanges(list(numbers), ranges, counts[ends])


class Fetching:
    """Reads what the fetcher has, and tells it which announced readings are over.

    Parameters
    ----------
    client : FetchClient or None
        Client of the node's fetcher, if it reads anything of the cache.
    """

    def __init__(self, client: FetchClient | None) -> None:
        self._client = client
        self._ended: list[Reading] = []  # of which the fetcher was not told yet
        self._shards: OrderedDict[Source, int] = OrderedDict()  # the fetcher's own files
        self._deaths = 0  # of fetchers, up to the one whose files these are

    def __del__(self) -> None:
        self._close_shards()

    def _close_shards(self) -> None:
        while self._shards:
            os.close(self._shards.popitem()[1])

    def attempt(
        self, found: FetchedRanges, action: Callable[[Mapping[Source, int]], Result]
    ) -> Result:
        """Return what an action makes of descriptors of files with ranges, by their sources.

        Ranges have their own offsets. Of shards, these are the fetcher's own files: where one is
        discarded in that time, so that the action raises EOFError, it is called again, with a copy.

        Parameters
        ----------
        found : FetchedRanges
            Ranges that are read, of at most `MOST_DESCRIPTORS` sources.
        action : callable
            Reads the ranges.
        """
        if self._client is None or not len(found.ranges):
            return action({})
        opened = self._open_shards(self._client, [s for s in found.sources if s.codec])
        try:
            with self._copies(self._client, found, opened) as copies:
                return action({**opened, **copies})
        except EOFError:
            if not opened:
                raise
        with self._copies(self._client, found, {}) as copies:
            return action(copies)

    def _open_shards(self, client: FetchClient, sources: Sequence[Source]) -> dict[Source, int]:
        """Return descriptors of shards, but for those that the fetcher only copies."""
        for source in sources:
            file = self._shards.get(source)
            if file is None:
                continue
            if os.fstat(file).st_size == source.size:
                self._shards.move_to_end(source)
            else:
                os.close(self._shards.pop(source))
        if missing := [source for source in sources if source not in self._shards]:
            found = client.open_shards(missing, self._take_ended())
            if client.deaths != self._deaths:  # nobody frees the space of a dead one's files
                self._deaths = client.deaths
                self._close_shards()
            self._shards.update(found)
        while len(self._shards) > max(MOST_SHARDS, len(sources)):
            os.close(self._shards.popitem(last=False)[1])
        return {source: self._shards[source] for source in sources if source in self._shards}

    @contextlib.contextmanager
    def _copies(
        self, client: FetchClient, found: FetchedRanges, opened: Mapping[Source, int]
    ) -> Iterator[dict[Source, int]]:
        """Yield descriptors of sparse files with the ranges of all sources that are not open."""
        left = [number for number, source in enumerate(found.sources) if source not in opened]
        own = np.isin(found.ranges[:, 0], left)
        if not own.any():
            yield {}
            return
        ranges = found.ranges[own]
        ranges[:, 0] = np.searchsorted(left, ranges[:, 0])
        files = client.read([found.sources[number] for number in left], ranges, self._take_ended())
        try:
            yield files
        finally:
            for descriptor in files.values():
                os.close(descriptor)

    def end(self, readings: Iterable[Reading | None]) -> None:
        """Tell the fetcher that readings are over; with what is asked next, or when many are."""
        self._ended += [reading for reading in readings if reading is not None]
        if self._client is not None and len(self._ended) >= MOST_ENDED:
            self._client.read([], np.empty((0, 3), np.int64), self._take_ended())

    def _take_ended(self) -> list[Reading]:
        ended, self._ended = self._ended, []
        return ended

    def read(self, source: Source, begin: int, size: int) -> bytes:
        """Return bytes of one source."""
        assert self._client is not None, "it reads what is fetched"
        found = FetchedRanges(
            [source], np.array([[0, begin, size]], np.int64), np.ones(1, np.int64)
        )
        return self.attempt(found, lambda files: read_range(files[source], begin, begin + size))
