"""Reading what the node's fetcher has, and telling it what is over."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from distcache.node.ahead.protocol import MAX_DESCRIPTORS, Source
from distcache.storage.files import FileVersion, read_range, write_range
from distcache.train.fetching import MAX_ENDED_READINGS, FetchedRanges, Fetching, no_ranges

SIZE = 100


def shard(number: int) -> Source:
    """Return a compressed shard."""
    return Source(f"/data/shard.{number}.zstd", FileVersion(50, 0, 0), "zstd", SIZE)


def ranges_of(*sources: Source) -> FetchedRanges:
    """Return a range of each source, for a sample each."""
    count = len(sources)
    ranges = np.column_stack((np.arange(count), np.full(count, 10), np.full(count, 5)))
    return FetchedRanges(list(sources), ranges.astype(np.int64), np.arange(1, count + 1))


class Client:
    """A client of a fetcher."""

    def __init__(self) -> None:
        self.copied: list[str] = []
        self.ended: list[tuple[int, int]] = []

    def read(
        self, sources: Sequence[Source], ranges: Any, readings: Sequence[tuple[int, int]]
    ) -> dict[Source, int]:
        """Write ranges into new files."""
        self.ended += readings
        self.copied += [source.path for source in sources]
        found = {source: os.memfd_create("test") for source in sources}
        for number, begin, size in ranges.tolist():
            write_range(found[sources[number]], begin, bytes(range(begin, begin + size)))
        return found


@pytest.fixture
def client() -> Client:
    """A client."""
    return Client()


@pytest.fixture
def fetching(client: Client) -> Fetching:
    """What reads by the client."""
    return Fetching(client)  # type: ignore[arg-type]


def read(fetching: Fetching, found: FetchedRanges) -> list[bytes]:
    """Return the bytes of the range of each source."""
    with fetching.open(found) as files:
        return [read_range(files[source], 10, 15) for source in found.sources]


def test_more_sources_than_a_message_has_room_for(fetching: Fetching, client: Client) -> None:
    """They are asked for in several messages."""
    sources = [shard(number) for number in range(2 * MAX_DESCRIPTORS + 1)]
    assert read(fetching, ranges_of(*sources)) == [bytes(range(10, 15))] * len(sources)
    assert client.copied == [source.path for source in sources]


def test_files_are_closed(fetching: Fetching, client: Client) -> None:
    """All ranges are asked for in one message, and their files live as long as the block."""
    before = len(os.listdir("/proc/self/fd"))
    assert read(fetching, ranges_of(shard(1), shard(0), shard(2))) == [bytes(range(10, 15))] * 3
    assert client.copied == [shard(n).path for n in (1, 0, 2)]
    with pytest.raises(RuntimeError), fetching.open(ranges_of(shard(1))):
        raise RuntimeError
    assert len(os.listdir("/proc/self/fd")) == before


def test_nothing_is_asked_for(client: Client) -> None:
    """Of what the fetcher does not read."""
    for made in (Fetching(client), Fetching(None)):  # type: ignore[arg-type]
        with made.open(no_ranges(3)) as files:
            assert files == {}
    assert client.copied == []


def test_readings_that_are_over(fetching: Fetching, client: Client) -> None:
    """The fetcher is told with what is asked next, or when there are many; never before."""
    read(fetching, ranges_of(shard(1)))
    fetching.end([(7, 0), None])
    assert client.ended == []
    read(fetching, ranges_of(shard(2)))
    assert client.ended == [(7, 0)]
    fetching.end([(7, number) for number in range(1, MAX_ENDED_READINGS + 1)])
    assert len(client.ended) == MAX_ENDED_READINGS + 1
