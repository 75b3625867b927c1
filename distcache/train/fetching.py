"""What the node's fetcher has to read of samples, and reading it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distcache.corpus.mds.shard_table import shards_at
from distcache.node.ahead.client import FetchClient
from distcache.node.ahead.protocol import Source
from distcache.storage.files import read_range
from distcache.train.token_files import TokenPlaces

MOST_ENDED: Final = 256  # readings
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

    @contextlib.contextmanager
    def open(self, found: FetchedRanges) -> Iterator[Mapping[Source, int]]:
        """Yield descriptors of sparse files that have ranges at their own offsets, by sources.

        Parameters
        ----------
        found : FetchedRanges
            Ranges that are read, of at most `MOST_DESCRIPTORS` sources.
        """
        if self._client is None or not len(found.ranges):
            yield {}
            return
        files = self._client.read(found.sources, found.ranges, self._take_ended())
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
        found = FetchedRanges(
            [source], np.array([[0, begin, size]], np.int64), np.ones(1, np.int64)
        )
        with self.open(found) as files:
            return read_range(files[source], begin, begin + size)
