"""A shuffle by links, of one rank; tests/jobs has several."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from distcache.builder.links import shuffled_slice
from distcache.builder.section_slice import draw_bounds
from distcache.kernels import Mt19937
from tests.support import here


@pytest.mark.parametrize("size", [0, 1, 2, 3, 50, 4000])
def test_it_is_the_shuffle_of_numpy(size: int, limit: Callable[..., None]) -> None:
    """It is the shuffle of NumPy in pieces of any size, and the generator continues behind it."""
    limit("distcache.builder.links", PIECE_STEPS=700)
    generator, numpy = Mt19937(11), np.random.RandomState(11)
    expected = np.arange(size, dtype=np.uint32)
    numpy.shuffle(expected)
    found = shuffled_slice(here.ALONE, size, generator, [0, size])
    assert found.tolist() == expected.tolist()
    assert generator.next32() == numpy.randint(0, 2**32, dtype=np.uint32)


@pytest.mark.parametrize("ranks", [1, 2, 7, 128])
def test_no_rank_has_more_than_twice_the_mean(ranks: int) -> None:
    """Neither of positions nor of draws: low positions are drawn more often than high ones."""
    size = 200_000
    bounds = draw_bounds(size, ranks)
    draws = Mt19937(1).draw(size - 1, size - 1)
    drawn, _ = np.histogram(draws, bounds)
    assert bounds[0] == 0
    assert bounds[-1] == size
    assert drawn.max() < 2.1 * size / ranks
    assert np.diff(bounds).max() < 2.1 * size / ranks
    assert draw_bounds(0, ranks) == [0] * (ranks + 1)
