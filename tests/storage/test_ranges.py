"""Joining ranges: each lies in one request, and no request is larger than it must be."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from distcache.storage.place import join_ranges

RANGES = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 60)), max_size=30)


@given(RANGES, st.integers(0, 50), st.integers(1, 300))
def test_each_range_lies_in_one(ranges: list[tuple[int, int]], gap: int, most: int) -> None:
    """Of those that are not empty."""
    joined = join_ranges(ranges, gap, most)
    members = [member for group in joined for member in group.members]
    assert sorted(members) == [place for place, (_, size) in enumerate(ranges) if size]
    for group in joined:
        for member in group.members:
            begin, size = ranges[member]
            assert group.begin <= begin
            assert begin + size <= group.end


@given(RANGES, st.integers(0, 50), st.integers(1, 300))
def test_requests_are_bounded(ranges: list[tuple[int, int]], gap: int, most: int) -> None:
    """Unless one range alone is larger; they ascend, and what is close is joined."""
    joined = join_ranges(ranges, gap, most)
    for group in joined:
        assert group.end - group.begin <= most or len(group.members) == 1
    for one, other in itertools.pairwise(joined):
        assert one.begin <= other.begin
        begin, size = ranges[other.members[0]]
        assert begin > one.end + gap or max(one.end, begin + size) - one.begin > most


@given(RANGES)
def test_without_a_gap_no_byte_is_added(ranges: list[tuple[int, int]]) -> None:
    """Only ranges that touch or overlap are joined."""
    wanted = {byte for begin, size in ranges for byte in range(begin, begin + size)}
    joined = join_ranges(ranges, 0, 1 << 40)
    assert {byte for group in joined for byte in range(group.begin, group.end)} == wanted
