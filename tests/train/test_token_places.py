"""Where parts of samples are, and runs of samples that need few files."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distcache.node.ahead.protocol import Source
from distcache.storage.files import FileVersion
from distcache.train.fetching import fetched_ranges
from distcache.train.token_places import TokenPlaces, cut_by_files, locate, whole_files

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
