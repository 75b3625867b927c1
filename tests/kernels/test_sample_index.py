"""Boundaries of samples are a function of token position alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distcache.kernels import TOO_LONG, Cursor, emit_boundaries, look_up_lengths
from tests.kernels.truth import sample_rows

lengths = st.lists(st.one_of(st.just(0), st.integers(1, 9), st.integers(1, 400)), max_size=60)

PAIRS = np.empty((1, 2), np.int64)


def emit(
    sizes: list[int], length: int, extra: bool, slices: int, room: int, dtype: type
) -> list[tuple[int, int]]:
    """Emit all rows, from slices of the document index and a few at a time."""
    cursor, rows = Cursor(0, 0, 1), []
    begin = 0
    for part in np.array_split(np.array(sizes, np.int32), slices):
        while cursor.position < begin + len(part):
            pairs = np.empty((room, 2), dtype)
            count = emit_boundaries(part, begin, length, extra, cursor, pairs)
            rows += [tuple(row) for row in pairs[:count].tolist()]
        begin += len(part)
    return rows


@given(
    lengths,
    st.integers(1, 50),
    st.booleans(),
    st.integers(1, 7),
    st.integers(1, 9),
    st.sampled_from([np.int32, np.int64]),
)
def test_rows_are_those_of_running_sums(
    sizes: list[int], length: int, extra: bool, slices: int, room: int, dtype: type
) -> None:
    """In any number of slices, and however few rows fit at a time."""
    assert emit(sizes, length, extra, slices, room, dtype) == sample_rows(sizes, length, int(extra))


@given(lengths, st.integers(1, 50), st.booleans(), st.integers(0, 60))
def test_a_rank_emits_its_slice_alone(sizes: list[int], length: int, extra: bool, cut: int) -> None:
    """Knowing the tokens before its slice, a rank needs nothing else."""
    cut = min(cut, len(sizes))
    before = sum(sizes[:cut])
    rows = sample_rows(sizes, length, int(extra))
    first = sum(position < cut for position, _ in rows)
    own = np.array(sizes[cut:], np.int32)
    pairs = np.empty((len(rows) + 1, 2), np.int64)
    count = emit_boundaries(own, cut, length, extra, Cursor(cut, before, first + 1), pairs)
    assert [tuple(row) for row in pairs[:count].tolist()] == rows[first:]


def test_positions_beyond_32_bits() -> None:
    """A slice far into a document index of more than 2^32 entries has wide rows."""
    begin, token = 2**33, 2**44
    length = 2**20
    cursor = Cursor(begin, token, token // length + 1)
    pairs = np.empty((8, 2), np.int64)
    sizes = np.array([0, 3 * length, 1], np.int32)
    count = emit_boundaries(sizes, begin, length, True, cursor, pairs)
    assert pairs[:count].tolist() == [[begin + 1, length], [begin + 1, 2 * length], [begin + 2, 0]]
    assert cursor.position == begin + 3


def test_a_cursor_outside_its_slice_is_refused() -> None:
    """It would read beyond the lengths."""
    for position in (4, 8):
        with pytest.raises(ValueError, match="cursor"):
            emit_boundaries(np.ones(2, np.int32), 5, 4, True, Cursor(position, 0, 1), PAIRS.copy())


@given(
    st.lists(st.one_of(st.integers(0, 99), st.integers(TOO_LONG - 2, 2**31 - 1)), min_size=1),
    st.data(),
)
def test_lengths_in_any_order(sizes: list[int], data: st.DataObject) -> None:
    """Lengths are found in any order, at any address, and beyond 16 bits."""
    begin = data.draw(st.integers(0, len(sizes) - 1))
    chosen = data.draw(st.lists(st.integers(begin, len(sizes) - 1), max_size=200))
    lengths = np.frombuffer(b"x" + np.array(sizes, np.int32).tobytes(), np.int32, len(sizes), 1)
    narrow = np.minimum(lengths[begin:], TOO_LONG).astype(np.uint16)
    found = np.empty(len(chosen), np.int32)
    look_up_lengths(narrow, lengths, begin, np.array(chosen, np.int32), found)
    assert found.tolist() == [sizes[number] for number in chosen]


@pytest.mark.parametrize("sequence", [-(2**31), 3, 8, 2**31 - 1])
def test_a_sequence_outside_the_range_is_refused(sequence: int) -> None:
    """Nothing outside of the table is read."""
    narrow, lengths = np.ones(4, np.uint16), np.ones(9, np.int32)
    with pytest.raises(IndexError, match="within the range"):
        look_up_lengths(
            narrow, lengths, 4, np.array([5, sequence], np.int32), np.empty(2, np.int32)
        )


def test_a_table_of_more_than_all_lengths_is_refused() -> None:
    """A long sequence has to be in the index as well."""
    two = np.zeros(2, np.int32)
    for begin in (-1, 6):
        with pytest.raises(ValueError, match="both tables"):
            look_up_lengths(np.ones(4, np.uint16), np.ones(9, np.int32), begin, two, two.copy())
