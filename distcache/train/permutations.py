"""Torch's permutations, as the installed version of torch draws them."""

from __future__ import annotations

import functools

import numpy as np
import torch
from numpy.typing import NDArray

from distcache.kernels import Permutation
from distcache.megatron.sampling import Drawn


def draw_permutation(seed: int, size: int) -> Drawn:
    """Return torch's permutation with a seed: by the kernel, if this version draws as it does."""
    return Permutation(seed, size) if _is_torchs_own() else _Whole(seed, size)


class _Whole:
    """The same as `Permutation`, drawn by torch, with memory for all of it."""

    def __init__(self, seed: int, size: int) -> None:
        self._values: NDArray[np.int64] = _draw(seed, size)
        self.position = 0

    def next(self, out: NDArray[np.int64]) -> None:
        out[:] = self._values[self.position : self.position + len(out)]
        self.position += len(out)

    def skip(self, count: int) -> None:
        self.position += count


def _draw(seed: int, size: int) -> NDArray[np.int64]:
    drawn: NDArray[np.int64] = torch.randperm(
        size, generator=torch.Generator().manual_seed(seed)
    ).numpy()
    return drawn


@functools.cache
def _is_torchs_own() -> bool:
    """Return whether this version of torch draws as `Permutation` does."""
    out = np.empty(1000, np.int64)
    Permutation(77, len(out)).next(out)
    return bool(np.array_equal(out, _draw(77, len(out))))
