"""Where parts of samples are, and how their files are opened and read."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import distcache
from distcache.errors import CorpusError
from distcache.node.ahead.protocol import MAX_DESCRIPTORS, Source
from distcache.storage.files import FileVersion, read_range, write_range
from distcache.storage.timeouts import MAX_ATTEMPTS, pause_before
from distcache.train import token_files
from distcache.train.fetching import (
    MAX_ENDED_READINGS,
    FetchedRanges,
    Fetching,
    fetched_ranges,
    no_ranges,
)
from distcache.train.token_files import TokenFiles
from distcache.train.token_places import TokenPlaces, cut_by_files, locate, whole_files
from tests.support import here
from tests.support.corpora import write_corpus
from tests.support.odd import odd
from tests.support.processes import clean_environment, start

# As many as sites give, or as this machine lets its root have.
HIGH = min(65_536, resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def test_pauses_are_jittered() -> None:
    """So that not all processes try again at once."""
    assert len({pause_before(3) for _ in range(20)}) == 20
    assert sum(pause_before(attempt) for attempt in range(1, MAX_ATTEMPTS)) < 15


READ = """
import sys
import distcache
train = distcache.open(sys.argv[1]).dataset("train")
print([row["tokens"].tolist() for row in train.__getitems__(list(range(16)))])
"""


@pytest.mark.parametrize(
    ("action", "lasts"), [("EIO", False), pytest.param("broken", True, marks=pytest.mark.more)]
)
def test_errors_that_pass_are_outlived(
    action: str, lasts: bool, cache: Path, library: Path
) -> None:
    """The file is opened and read again; an error that stays names the file and the byte."""
    strike = odd(library, f"strike={action}:read:3:.bin")
    done = start([cache], environment=strike, program=(sys.executable, "-c", READ))
    if lasts:
        assert done.returncode == 1
        assert re.search(r"OSError.*at byte \d+.*\.bin", done.stderr), done.stderr
    else:
        train = distcache.open(cache).dataset("train")
        expected = [row["tokens"].tolist() for row in train.__getitems__(list(range(16)))]
        assert done.stdout.strip() == str(expected), done.stderr


def open_files() -> int:
    """Count this process's descriptors."""
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache over 800 corpora."""
    directory = tmp_path_factory.mktemp("many")
    random = np.random.default_rng(1)
    blend = []
    for number in range(800):
        prefix = str(directory / f"corpus-{number}")
        documents = [random.integers(0, 999, 200).astype("u2") for _ in range(4)]
        write_corpus(prefix, documents, "u2")
        blend.append({"path": prefix, "weight": float(random.lognormal())})
    fields = {
        "sequence_length": 16,
        "split": "1,0,0",
        "samples": {"train": 20_000},
        "blend": blend,
        "mid_level_dataset_surplus": 0.5,
        "tokenizer": {},
    }
    return Path(here.build(fields, directory, "many").path)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 8, 500])
def test_many_files_are_opened_once(many: Path, batch: int, opened: list[str]) -> None:
    """Each when it is first read, where the limit of descriptors allows it."""
    dataset = distcache.open(many).dataset("train")
    random = np.random.default_rng(2)
    seen = set()
    for _ in range(6000 // batch):
        rows = dataset.__getitems__(random.integers(0, len(dataset), batch).tolist())
        seen |= {int(row["dataset_id"]) for row in rows}
    assert len(seen) > 500
    read = [path for path in opened if path.endswith(".bin")]
    assert len(read) == len(set(read)) == len(seen)


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize(("limit", "most"), [(64, 56), (256, 200), (1024, 900), (HIGH, 800)])
def test_limits_of_descriptors(many: Path, limit: int, most: int) -> None:
    """The soft limit is raised to the hard one, a reserve is kept, and all samples are read."""
    code = f"""
import os, resource, sys
import numpy as np
import distcache
resource.setrlimit(resource.RLIMIT_NOFILE, (min({limit}, 128), {limit}))
dataset = distcache.open({str(many)!r}).dataset("train")
before = len(os.listdir("/proc/self/fd"))
random = np.random.default_rng(2)
for _ in range(500):
    dataset.__getitems__(random.integers(0, len(dataset), 16).tolist())
print(len(os.listdir("/proc/self/fd")) - before, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    count, soft = map(int, done.stdout.split())
    assert soft == limit
    assert 56 <= count <= most
    assert count > 100 or limit < 256


def test_the_pool_keeps_what_was_used_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: Callable[..., None]
) -> None:
    """And, over all readers of a process, never more than it may."""
    for number in range(9):
        (tmp_path / str(number)).write_bytes(bytes(number))
    limit("distcache.train.token_files", FILES_PER_READER=2)
    monkeypatch.setattr(token_files, "_opened", token_files._Count())
    files, others = TokenFiles(budget=4), TokenFiles(budget=4)
    before = open_files()
    others.descriptors([(str(tmp_path / "8"), 8)])
    for number in [0, 1, 2, 0, 3, 0, 4, 0, 5]:
        files.descriptors([(str(tmp_path / str(number)), number)])
        assert open_files() - before <= 4
    assert len(files.descriptors([(str(tmp_path / str(n)), n) for n in (6, 7, 8, 6)])) == 4
    assert open_files() - before == 4
    files.close()
    others.close()
    assert open_files() == before


def test_a_later_part_of_a_sample_that_cannot_be_read(tmp_path: Path) -> None:
    """It is an error with the path of the one `.bin`, whichever part of the sample it was."""
    documents = [np.arange(20) for _ in range(200)]
    prefix = str(tmp_path / "c")
    write_corpus(prefix, documents, "i4")
    fields = {"sequence_length": 64, "seed": 1, "samples": {"train": 50, "valid": 0, "test": 0}}
    built = here.build(fields | {"split": "1", "blend": [prefix]}, tmp_path / "caches")
    dataset = distcache.open(built.path).dataset("train")
    assert len(dataset[0]["tokens"]) == 64
    os.truncate(f"{prefix}.bin", 100)
    with pytest.raises(CorpusError, match=r"c\.bin: ends before byte"):
        dataset.__getitems__(list(range(40)))


SHARD = 100  # bytes


def packed(shard: int) -> Source | None:
    """Return what is fetched of every third shard."""
    version = FileVersion(9, 0, 0)
    return None if shard % 3 else Source(f"/c/{shard}.zstd", version, "zstd", SHARD)


WHOLE = TokenPlaces([("/a.bin", 1000)])
OBJECT = TokenPlaces(
    [("s3://b/b.bin", 1000)], fetched=lambda _: Source("s3://b/b.bin", FileVersion(1000, 0, 0))
)
SHARDS = TokenPlaces(
    [(f"/c/{number}", SHARD) for number in range(10)], SHARD * np.arange(10), packed
)
part = st.tuples(st.integers(0, 9), st.integers(0, 60), st.sampled_from([0, 1, 40]))
samples = st.lists(
    st.tuples(st.sampled_from([WHOLE, OBJECT, SHARDS]), st.lists(part, max_size=5)),
    min_size=1,
    max_size=12,
)


@given(samples, st.integers(1, 6))
def test_every_part_is_in_its_file(
    drawn: list[tuple[TokenPlaces, list[tuple[int, int, int]]]], most: int
) -> None:
    """Also in the runs into which samples are cut, and as the fetcher is asked for it."""
    places = [known for known, _ in drawn]
    begins = np.array([SHARD * n + at for _, parts in drawn for n, at, _ in parts], np.int64)
    sizes = np.array([size for _, parts in drawn for *_, size in parts], np.int64)
    bounds = np.cumsum([0, *(len(parts) for _, parts in drawn)])
    seen = 0
    for rows, where in cut_by_files(locate(places, begins, sizes, bounds), most):
        assert rows.start == seen
        seen = rows.stop
        assert len(where.files) <= most or rows.stop == rows.start + 1
        asked = fetched_ranges(where)
        ranges = iter(asked.ranges.tolist())
        for row, (known, parts) in enumerate(drawn[rows]):
            first = int(where.bounds[row])
            for place, (shard, at, size) in enumerate(parts, first):
                number, begin = int(where.numbers[place]), int(where.begins[place])
                if known is SHARDS and size == 0:
                    assert number == -1
                    continue
                file = shard if known is SHARDS else 0
                assert where.files[number] == known.files[file]
                assert where.sources[number] == known.fetched(file)
                assert begin == (at if known is SHARDS else SHARD * shard + at)
                if where.sources[number] is not None and size:
                    source, *range_ = next(ranges)
                    assert asked.sources[source] == where.sources[number]
                    assert range_ == [begin, size]
        assert next(ranges, None) is None
    assert seen == len(drawn)


def test_a_part_before_the_first_shard() -> None:
    """It is an error of the arrays, which lead outside."""
    late = TokenPlaces([("/c/0", SHARD)], np.array([50]))
    with pytest.raises(IndexError, match="before the first shard"):
        locate([late], np.array([10]), np.array([4]), np.array([0, 1]))


def test_corpora_of_one_local_file_need_no_parts() -> None:
    """Each sample has its `.bin`."""
    where = whole_files([WHOLE, TokenPlaces([("/b.bin", 8)]), WHOLE])
    assert [where.files[number][0] for number in where.numbers] == ["/a.bin", "/b.bin", "/a.bin"]
    assert [rows for rows, _ in cut_by_files(where, 1)] == [slice(n, n + 1) for n in range(3)]


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
