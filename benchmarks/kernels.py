"""The kernels on one core, beside NumPy's shuffle and Megatron-Core's helpers for blends.

Every result is compared. *AVX2* and *baseline* have no better instructions. The limit is what a
core takes to copy the bytes that must be read and written at least.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Run, Table, factor, process, require_equal, timed
from distcache.kernels import Blender, Mt19937

MARKS = ("kernels",)
JUDGE = "0.16.1"
BYTES_OF_SAMPLE = 10  # an int16 and an int64
SEED = 1234
ELEMENTS = 100_000_000
SHUFFLE, EXHAUSTIVE = "shuffle", "exhaustive, 800 corpora"
VARIABLE = "DISTCACHE_INSTRUCTIONS"
KINDS: dict[str, dict[str, str]] = {
    "distcache": {},
    "AVX2": {VARIABLE: "avx2"},
    "baseline": {VARIABLE: "baseline"},
}


def blends() -> dict[str, tuple[NDArray[np.float64], int]]:
    """Return weights and numbers of samples by name."""
    random = np.random.default_rng(0)
    weights = {
        f"{count:,} corpora, log-normal": random.lognormal(0, 1.5, count)
        for count in (5000, 800, 97, 60, 30, 11, 5, 3, 2)
    }
    weights["800 corpora, equal"] = np.ones(800)
    weights["1 corpus"] = np.ones(1)
    return {
        name: (found / found.sum(), 200_000 if len(found) > 1000 else 1_000_000)
        for name, found in weights.items()
    }


def sizes() -> NDArray[np.int64]:
    """Return how many samples the corpora of an exhaustive blend have."""
    return (np.random.default_rng(1).lognormal(0, 1.5, 800) * 400).astype(np.int64) + 1


def room(samples: int) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """Return the two arrays of a blend, in memory that has been touched."""
    return np.ones(samples, np.int16), np.ones(samples, np.int64)


def ours(elements: int) -> dict[str, float]:
    """Return the seconds of each of our kernels, for an element or a sample."""
    values = np.arange(elements, dtype=np.int32)
    found = {SHUFFLE: timed(lambda: Mt19937(SEED).shuffle(values))["seconds"] / elements}
    for name, (weights, samples) in blends().items():
        arrays, blender = room(samples), Blender.by_weight(weights)
        found[name] = timed(lambda: blender.next(*arrays))["seconds"] / samples  # noqa: B023
    total = int(sizes().sum())
    arrays, blender = room(total), Blender.exhaustive(sizes())
    return found | {EXHAUSTIVE: timed(lambda: blender.next(*arrays))["seconds"] / total}


def theirs(elements: int) -> dict[str, float]:
    """Return the seconds of NumPy and of Megatron-Core's helpers, and compare the results."""
    warnings.simplefilter("ignore")
    from megatron.core.datasets import helpers  # noqa: PLC0415

    values = np.arange(elements, dtype=np.int32)
    numpy = np.random.RandomState(SEED)
    found = {SHUFFLE: timed(lambda: numpy.shuffle(values))["seconds"] / elements}
    mine = np.arange(elements, dtype=np.int32)
    Mt19937(SEED).shuffle(mine)
    require_equal(SHUFFLE, values.tobytes(), mine.tobytes())
    for name, (weights, samples) in blends().items():
        arguments = (*room(samples), weights, len(weights), samples, False)
        taken = timed(lambda: helpers.build_blending_indices(*arguments))  # noqa: B023
        found[name] = taken["seconds"] / samples
        compare(name, Blender.by_weight(weights), arguments[:2])
    total = int(sizes().sum())
    arguments = (*room(total), sizes(), 800)
    taken = timed(lambda: helpers.build_exhaustive_blending_indices(*arguments))
    compare(EXHAUSTIVE, Blender.exhaustive(sizes()), arguments[:2])
    return found | {EXHAUSTIVE: taken["seconds"] / total}


def compare(name: str, blender: Blender, expected: tuple[Any, ...]) -> None:
    """Compare a blend of ours."""
    arrays = room(len(expected[0]))
    blender.next(*arrays)
    for found, theirs in zip(arrays, expected, strict=True):
        require_equal(name, theirs.tobytes(), found.tobytes())


def copying() -> dict[str, float]:
    """Return the seconds that a byte takes that a core reads and writes."""
    source, target = np.ones(1 << 25), np.ones(1 << 25)
    best = min(timed(lambda: np.copyto(target, source))["seconds"] for _ in range(5))
    return {"byte": best / (2 * source.nbytes)}


def tables(run: Run) -> Iterator[Table]:
    """Compare all kernels."""
    elements = run.size(ELEMENTS)
    contenders = {"reference": lambda: process(theirs, elements)} | {
        name: partial(process, ours, elements, environment=environment)
        for name, environment in KINDS.items()
    }
    found = run.in_turn(contenders)
    limit = run.in_turn({"copying": lambda: process(copying)})["copying"]["byte"]
    rows = []
    for name in (SHUFFLE, *blends(), EXHAUSTIVE):
        cells = [name, found["reference"].said(name, "ns", 1e-9)]
        for kind in KINDS:
            cells += [found[kind].said(name, "ns", 1e-9)]
            cells += [factor(found["reference"], found[kind], name)]
        least = limit * (8 if name == SHUFFLE else BYTES_OF_SAMPLE)
        rows.append([*cells, f"{1e9 * least:.2f} ns", f"{found['distcache'][name] / least:.0f}x"])
    head = ["kernel", "reference", *(cell for kind in KINDS for cell in (kind, ""))]
    yield Table("kernels", [*head, "limit", "distance"], rows)
