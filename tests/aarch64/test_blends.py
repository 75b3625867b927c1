"""The helper in Megatron-Core's AArch64 wheel draws the blends of `blend_arithmetic: fused`.

Run by `scripts/aarch64`, under qemu. The binary is for another Python than Debian's, so its
functions are called where its symbols say that they lie. They take references to NumPy's arrays.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from distcache.kernels import Blender

JUDGE = Path(os.environ.get("DISTCACHE_JUDGE", ""))
INIT = "PyInit_helpers_cpp"
Blend = tuple[NDArray[np.int16], NDArray[np.int64]]
STEPS = 20_000


def function(name: str, *types: Any) -> Callable[..., None]:
    """Return a function of the helper, which takes three arrays and more arguments."""
    lines = (JUDGE / "helpers.symbols").read_text().splitlines()
    symbols = {words[-1]: int(words[0], 16) for line in lines if len(words := line.split()) == 3}
    (symbol,) = (symbol for symbol in symbols if name in symbol)
    library = ctypes.CDLL(str(JUDGE / "helpers.so"))
    start = ctypes.cast(getattr(library, INIT), ctypes.c_void_p).value
    assert start is not None
    call = ctypes.PYFUNCTYPE(None, *[ctypes.c_void_p] * 3, *types)(
        start - symbols[INIT] + symbols[symbol]
    )

    def of_arrays(*arguments: Any) -> None:
        arrays = [ctypes.c_void_p(id(array)) for array in arguments[:3]]
        call(*[ctypes.addressof(array) for array in arrays], *arguments[3:])

    return of_arrays


def drawn(blender: Blender, steps: int) -> Blend:
    """Return the blend of so many steps."""
    blend = np.empty(steps, np.int16), np.empty(steps, np.int64)
    blender.next(*blend)
    return blend


def equal(ours: Blend, theirs: Blend) -> bool:
    """Return whether both arrays are equal."""
    return all(np.array_equal(mine, judge) for mine, judge in zip(ours, theirs, strict=True))


def weight_sets() -> list[NDArray[np.float64]]:
    """Return normalized weights: few digits, where errors tie, and any."""
    random = np.random.default_rng(7)
    sets = [random.integers(1, 10, random.integers(2, 32)).astype(float) for _ in range(60)]
    sets += [random.lognormal(0, 2, count) for count in (2, 3, 64, 65, 300)]
    return [weights / weights.sum() for weights in sets]


def test_of_which_machine() -> None:
    """The process is one of AArch64, though the machine may be another."""
    assert platform.machine() == "aarch64"


def test_by_weight() -> None:
    """All with one rounding; with two, which is x86-64's way, many are others."""
    types = ctypes.c_int32, ctypes.c_int64, ctypes.c_bool
    draw = function("build_blending_indices", *types)
    others = 0
    for weights in weight_sets():
        theirs = np.zeros(STEPS, np.int16), np.zeros(STEPS, np.int64)
        draw(*theirs, weights, len(weights), STEPS, False)
        assert equal(drawn(Blender.by_weight(weights, fused=True), STEPS), theirs)
        others += not equal(drawn(Blender.by_weight(weights), STEPS), theirs)
    assert (others, len(weight_sets())) == (54, 65)


@pytest.mark.parametrize("corpora", [2, 9, 100])
def test_exhaustive(corpora: int) -> None:
    """Until every corpus is spent."""
    draw = function("build_exhaustive_blending_indices", ctypes.c_int32)
    others = 0
    for seed in range(12):
        sizes = np.random.default_rng(seed).integers(1, 40, corpora)
        total = int(sizes.sum())
        theirs = np.zeros(total, np.int16), np.zeros(total, np.int64)
        draw(*theirs, sizes, corpora)
        assert equal(drawn(Blender.exhaustive(sizes, fused=True), total), theirs)
        others += not equal(drawn(Blender.exhaustive(sizes), total), theirs)
    assert corpora == 2 or others > 0
