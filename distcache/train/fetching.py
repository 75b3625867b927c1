"""What the node's fetcher has to read of samples, and reading it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distcache.node.ahead.client import FetchClient
from distcache.node.ahead.protocol import MAX_DESCRIPTORS, Source
from distcache.train.token_places import Located

MAX_ENDED_READINGS: Final = 256  # readings
Reading = tuple[int, int]
"""A stream, and the number of a reading that was announced in it."""


class FetchedRanges(NamedTuple):
    """What the fetcher has to read of samples."""

    sources: list[Source]
    ranges: NDArray[np.int64]  # shape (ranges, 3): number of the source, first byte, bytes
    ends: NDArray[np.int64]  # number of ranges up to the end of each sample


NOTHING: Final[NDArray[np.int64]] = np.empty((0, 3), np.int64)
NO_FILES: Final = contextlib.nullcontext[Mapping[Source, int]]({})


def no_ranges(samples: int) -> FetchedRanges:
    """Return that the fetcher reads nothing of samples."""
    return FetchedRanges([], NOTHING, np.zeros(samples, np.int64))


def fetched_ranges(where: Located) -> FetchedRanges:
    """Return what the fetcher has to read of samples."""
    own = [number for number, source in enumerate(where.sources) if source is not None]
    if not own:
        return no_ranges(len(where.bounds) - 1)
    owners = np.full(len(where.sources) + 1, -1)  # the last one, -1, for parts without bytes
    owners[own] = np.arange(len(own))
    owner = owners[where.numbers]
    chosen = (owner >= 0) & (where.sizes > 0)
    counts = np.concatenate(([0], np.cumsum(chosen)))
    return FetchedRanges(
        [source for source in where.sources if source is not None],
        np.column_stack((owner, where.begins, where.sizes))[chosen],
        counts[where.bounds[1:]],
    )


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

    def open(self, found: FetchedRanges) -> contextlib.AbstractContextManager[Mapping[Source, int]]:
        """Return a context with sparse files that have ranges at their own offsets, by sources.

        Parameters
        ----------
        found : FetchedRanges
            Ranges that are read.
        """
        if self._client is None or not len(found.ranges):
            return NO_FILES
        return self._open(self._client, found)

    @contextlib.contextmanager
    def _open(self, client: FetchClient, found: FetchedRanges) -> Iterator[Mapping[Source, int]]:
        files: dict[Source, int] = {}
        try:
            for first in range(0, len(found.sources), MAX_DESCRIPTORS):
                sources = found.sources[first : first + MAX_DESCRIPTORS]
                owner = found.ranges[:, 0]
                own = found.ranges[(owner >= first) & (owner < first + len(sources))]
                files |= client.read(sources, own - (first, 0, 0), self._take_ended())
            yield files
        finally:
            for descriptor in files.values():
                os.close(descriptor)

    def end(self, readings: Iterable[Reading | None]) -> None:
        """Tell the fetcher that readings are over; with what is asked next, or when many are."""
        self._ended += [reading for reading in readings if reading is not None]
        if self._client is not None and len(self._ended) >= MAX_ENDED_READINGS:
            self._client.read([], np.empty((0, 3), np.int64), self._take_ended())

    def _take_ended(self) -> list[Reading]:
        ended, self._ended = self._ended, []
        return ended
