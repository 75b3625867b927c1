"""Boundaries of samples are a function of token position alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distcache.kernels import Cursor, emit_boundaries, fill_entries
from tests.kernels.truth import entries_of, sample_rows

lengths = st.lists(st.one_of(st.just(0), st.integers(1, 9), st.integers(1, 400)), max_size=60)

PAIRS = np.empty((1, 2), np.int64)


def emit(
    sizes: list[int], length: int, extra: bool, slices: int, room: int, dtype: type
) -> list[tuple[int, int]]:
    """Emit all rows, from slices of the document index and a few at a time."""
    entries = entries_of(range(len(sizes)), sizes)
    cursor, rows = Cursor(0, 0, 1), []
    begin = 0
    for part in np.array_split(entries, slices):
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
    entries = entries_of(range(cut, len(sizes)), sizes[cut:])
    pairs = np.empty((len(rows) + 1, 2), np.int64)
    count = emit_boundaries(entries, cut, length, extra, Cursor(cut, before, first + 1), pairs)
    assert [tuple(row) for row in pairs[:count].tolist()] == rows[first:]


def test_positions_beyond_32_bits() -> None:
    """A slice far into a document index of more than 2^32 entries has wide rows."""
    begin, token = 2**33, 2**44
    length = 2**20
    cursor = Cursor(begin, token, token // length + 1)
    pairs = np.empty((8, 2), np.int64)
    count = emit_boundaries(
        entries_of([1, 2, 3], [0, 3 * length, 1]), begin, length, True, cursor, pairs
    )
    assert pairs[:count].tolist() == [[begin + 1, length], [begin + 1, 2 * length], [begin + 2, 0]]
    assert cursor.position == begin + 3


def test_a_cursor_outside_its_slice_is_refused() -> None:
    """It would read beyond the entries."""
    for position in (4, 8):
        with pytest.raises(ValueError, match="cursor"):
            emit_boundaries(
                entries_of([0, 0], [1, 1]),
                5,
                4,
                True,
                Cursor(position, 0, 1),
                np.empty((1, 2), np.int64),
            )


def test_entries_have_documents_and_lengths() -> None:
    """Entries have documents and lengths from lengths at any address, as those of an index are."""
    lengths = np.frombuffer(b"x" + np.arange(10, 20, dtype=np.int32).tobytes(), np.int32, 10, 1)
    entries = np.empty(3, np.int64)
    fill_entries(lengths, 4, entries)
    assert entries.view(np.int32).reshape(-1, 2).tolist() == [[4, 14], [5, 15], [6, 16]]


@pytest.mark.parametrize("begin", [-1, 8])
def test_entries_need_lengths(begin: int) -> None:
    """Entries need lengths, or nothing is read."""
    with pytest.raises(ValueError, match="a length for each entry"):
        fill_entries(np.zeros(10, np.int32), begin, np.empty(3, np.int64))
