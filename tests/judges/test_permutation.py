"""Torch itself is the judge of permutations that are too large to be drawn as they are wanted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from distcache.kernels import Permutation

pytestmark = pytest.mark.once


@pytest.mark.more
def test_large_permutations_are_torchs() -> None:
    """From 2**32 // 20 values on, where torch draws in another way."""
    size = 2**32 // 20
    for count in (size - 1, size):
        generator = torch.Generator().manual_seed(3)
        expected = torch.randperm(count, generator=generator, dtype=torch.int32)  # draws are equal
        drawn = Permutation(3, count)
        drawn.skip(1000)
        found = np.empty(100_000, np.int64)
        drawn.next(found)
        assert np.array_equal(found, expected[1000:101_000].numpy())
