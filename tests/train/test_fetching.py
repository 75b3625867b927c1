"""Reading in place what the node's fetcher has unpacked."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distcache.node.ahead.protocol import Source
from distcache.storage.files import FileVersion, open_unnamed, read_range, write_range
from distcache.train.fetching import MOST_ENDED, MOST_SHARDS, FetchedRanges, Fetching

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
    """A client of a fetcher that can discard shards."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.copied: list[str] = []
        self.opened: list[str] = []
        self.ended: list[tuple[int, int]] = []
        self.discarded = False
        self.deaths = 0
        self.files: list[int] = []

    def open_shards(
        self, sources: Sequence[Source], readings: Sequence[tuple[int, int]]
    ) -> dict[Source, int]:
        """Open all shards but the first, of which there is only a copy."""
        self.ended += readings
        self.opened += [source.path for source in sources]
        found = {}
        for source in sources:
            if source != shard(0):
                found[source] = open_unnamed(self.directory)
                if not self.discarded:
                    write_range(found[source], 0, bytes(range(SIZE)))
        self.files += found.values()
        return found

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
def client(tmp_path: Path) -> Client:
    """A client."""
    return Client(tmp_path)


@pytest.fixture
def fetching(client: Client) -> Iterator[Fetching]:
    """What reads by the client; it closes what it has opened."""
    made = Fetching(client)  # type: ignore[arg-type]
    yield made
    before = len(os.listdir("/proc/self/fd"))
    count = len(made._shards)
    made.__del__()
    assert len(os.listdir("/proc/self/fd")) == before - count


def read(files: Mapping[Source, int]) -> list[bytes]:
    """Return the bytes of the range of each file."""
    return [read_range(file, 10, 15) for file in files.values()]


def test_shards_are_opened_once(fetching: Fetching, client: Client) -> None:
    """And read in place; what the fetcher only copies is copied, in one message."""
    found = ranges_of(shard(1), shard(0), shard(2))
    for _ in range(3):
        assert fetching.attempt(found, read) == [bytes(range(10, 15))] * 3
    assert client.opened == [shard(n).path for n in (1, 0, 2, 0, 0)]
    assert client.copied == [shard(0).path] * 3


def test_a_shard_that_was_discarded_before(fetching: Fetching, client: Client) -> None:
    """It is opened again."""
    found = ranges_of(shard(1))
    fetching.attempt(found, read)
    os.ftruncate(client.files[0], 0)
    assert fetching.attempt(found, read) == [bytes(range(10, 15))]
    assert (len(client.opened), client.copied) == (2, [])


def test_a_shard_that_is_discarded_while_it_is_read(fetching: Fetching, client: Client) -> None:
    """The action is called again, with a copy of all ranges."""
    client.discarded = True
    assert fetching.attempt(ranges_of(shard(1), shard(2)), read) == [bytes(range(10, 15))] * 2
    assert client.copied == [shard(1).path, shard(2).path]


def test_files_of_a_fetcher_that_has_died(fetching: Fetching, client: Client) -> None:
    """Are closed once another one is asked: nothing else frees their space."""
    for number in (1, 2, 3):
        fetching.attempt(ranges_of(shard(number)), read)
    client.deaths += 1
    assert fetching.attempt(ranges_of(shard(1), shard(4)), read) == [bytes(range(10, 15))] * 2
    assert [source.path for source in fetching._shards] == [shard(4).path]


def test_an_action_that_fails_without_shards(fetching: Fetching, client: Client) -> None:
    """Its own end of a file is not called again."""
    calls = []

    def fail(files: Mapping[Source, int]) -> None:
        calls.append(len(files))
        raise EOFError

    with pytest.raises(EOFError):
        fetching.attempt(ranges_of(shard(0)), fail)
    assert calls == [1]


def test_few_stay_open(fetching: Fetching, client: Client) -> None:
    """The most recently read; all that one batch needs."""
    for number in range(1, MOST_SHARDS + 10):
        fetching.attempt(ranges_of(shard(number)), read)
    assert len(fetching._shards) == MOST_SHARDS
    many = [shard(number) for number in range(100, 100 + MOST_SHARDS + 5)]
    assert len(fetching.attempt(ranges_of(*many), read)) == len(many)
    assert list(fetching._shards) == many


def test_readings_that_are_over(fetching: Fetching, client: Client) -> None:
    """The fetcher is told with what is asked next, or when there are many; never before."""
    fetching.attempt(ranges_of(shard(1)), read)
    fetching.end([(7, 0), None])
    fetching.attempt(ranges_of(shard(1)), read)
    assert client.ended == []
    fetching.attempt(ranges_of(shard(2)), read)
    assert client.ended == [(7, 0)]
    fetching.end([(7, number) for number in range(1, MOST_ENDED + 1)])
    assert len(client.ended) == MOST_ENDED + 1
