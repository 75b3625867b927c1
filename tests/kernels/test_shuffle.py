"""Shuffles are those of NumPy's legacy generator."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distcache.kernels import Mt19937, gather
from tests.kernels.truth import legacy_draws

seeds = st.integers(0, 2**32 - 1)


@given(seeds, st.integers(0, 5000), st.sampled_from([np.int32, np.uint32, np.int64]))
def test_shuffle_is_numpys(seed: int, size: int, dtype: type) -> None:
    """Equal values, and equal generators afterwards."""
    theirs, ours = np.arange(size, dtype=dtype), np.arange(size, dtype=dtype)
    state, generator = np.random.RandomState(seed), Mt19937(seed)
    state.shuffle(theirs)
    generator.shuffle(ours)
    np.testing.assert_array_equal(ours, theirs)
    assert generator.next32() == state.randint(0, 2**32, dtype=np.uint64)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_a_shuffle_larger_than_the_caches_is_numpys(dtype: type) -> None:
    """A shuffle larger than the caches is NumPy's, with regions and blocks as large as they are."""
    theirs, ours = (np.arange(5_300_000, dtype=dtype) for _ in range(2))
    state, generator = np.random.RandomState(5), Mt19937(5)
    state.shuffle(theirs)
    generator.shuffle(ours, 4_900_000)
    generator.shuffle(ours[:4_900_000])
    np.testing.assert_array_equal(ours, theirs)
    assert generator.next32() == state.randint(0, 2**32, dtype=np.uint64)


@given(seeds, st.integers(0, 3000), st.integers(1, 3000))
def test_a_shuffle_can_be_cut_in_two(seed: int, size: int, pivot: int) -> None:
    """The steps below a pivot are a permutation of positions that another generator computes."""
    whole = np.arange(size, dtype=np.int32) * 3
    np.random.RandomState(seed).shuffle(whole)
    values = np.arange(size, dtype=np.int32) * 3
    Mt19937(seed).shuffle(values, pivot)
    second = Mt19937(seed)
    second.skip_shuffle(size, pivot)
    positions = np.arange(min(pivot, size), dtype=np.int32)
    second.shuffle(positions)
    lower = np.empty(len(positions), np.int32)
    gather(values, positions, lower)
    np.testing.assert_array_equal(np.concatenate([lower, values[len(positions) :]]), whole)


@given(seeds, st.one_of(st.integers(1, 300), st.integers(2**31, 2**34)), st.integers(1, 60))
def test_draws_of_any_range(seed: int, first: int, count: int) -> None:
    """Draws of any range: beyond 2^32 - 1 two words make a draw, as in NumPy's 64-bit path."""
    count = min(count, first)
    assert Mt19937(seed).draw(first, count).tolist() == legacy_draws(seed, first, count)


@given(seeds, st.integers(2**32 + 100, 2**40), st.integers(1, 50))
def test_wide_draws_match_numpys_own(seed: int, highest: int, count: int) -> None:
    """`RandomState.randint` draws 64-bit numbers by the same masked rejection."""
    state = np.random.RandomState(seed)
    expected = [int(state.randint(0, highest - k + 1, dtype=np.uint64)) for k in range(count)]
    assert Mt19937(seed).draw(highest, count).tolist() == expected


def test_skipping_four_billion_steps_and_more() -> None:
    """Steps on both sides of 2^32 are skipped as they are drawn."""
    first, count = 2**32 + 20, 60
    drawn, skipped = Mt19937(5), Mt19937(5)
    drawn.draw(first, count)
    skipped.skip_shuffle(first + 1, first - count + 1)
    assert skipped.next32() == drawn.next32()


@pytest.mark.parametrize("bad", [np.arange(9, dtype=np.int16), np.arange(9)[::2], [1, 2]])
def test_nothing_is_converted(bad: object) -> None:
    """A wrong dtype or stride is an error, since a shuffled copy would be lost."""
    with pytest.raises(TypeError):
        Mt19937(1).shuffle(bad)  # type: ignore[arg-type]


def test_read_only_arrays_are_refused() -> None:
    """A view of a mapped file cannot be shuffled."""
    values = np.arange(9)
    values.flags.writeable = False
    with pytest.raises(ValueError, match="not writeable"):
        Mt19937(1).shuffle(values)


def test_gather_stays_within_its_values() -> None:
    """A position outside is an error and never a read."""
    values = np.arange(4, dtype=np.int32)
    for position in (-1, 4, 2**31 - 1):
        with pytest.raises(IndexError):
            gather(values, np.array([position], np.int32), np.empty(1, np.int32))
