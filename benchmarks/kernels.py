"""The kernels against NumPy and Megatron-Core's helpers, one core each, in turn in one run.

Every result is compared. Each row also says how far the limit is: the bytes that must be read and
written at least, at the speed at which this core copies memory. *AVX2* and *baseline* are the same
with no better instructions, in processes of their own.

    python benchmarks/kernels.py
    python benchmarks/kernels.py --rounds 1 --elements 10000000 --json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from machine import machine
from numpy.typing import NDArray

from distcache.kernels import Blender, Mt19937
from distcache.plan.blend_counts import estimate_counts

BYTES_OF_SAMPLE = 10  # an int16 and an int64
SEED = 1234


def blends() -> dict[str, tuple[NDArray[np.float64], int]]:
    """Return weights and numbers of samples by name."""
    random = np.random.default_rng(0)
    weights = {
        f"{count:,} corpora, log-normal": random.lognormal(0, 1.5, count)
        for count in (5000, 800, 128, 16, 8, 2)
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


def timed(action: Callable[[], object]) -> float:
    """Return the seconds of an action."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def ours(elements: int) -> dict[str, float]:
    """Return the nanoseconds of each of our kernels by name."""
    found = {}
    values = np.arange(elements, dtype=np.int32)
    found["shuffle"] = timed(lambda: Mt19937(SEED).shuffle(values)) / elements
    for name, (weights, samples) in blends().items():
        arrays, blender = room(samples), Blender.by_weight(weights)
        found[name] = timed(lambda: blender.next(*arrays)) / samples  # noqa: B023
    total = int(sizes().sum())
    arrays, blender = room(total), Blender.exhaustive(sizes())
    found["exhaustive, 800 corpora"] = timed(lambda: blender.next(*arrays)) / total
    return {name: 1e9 * seconds for name, seconds in found.items()}


def theirs(elements: int) -> dict[str, float]:
    """Return the nanoseconds of NumPy and of Megatron-Core's helpers by name; compare results."""
    warnings.simplefilter("ignore")
    from megatron.core.datasets import helpers  # noqa: PLC0415  imports much

    found = {}
    values = np.arange(elements, dtype=np.int32)
    numpy = np.random.RandomState(SEED)
    found["shuffle"] = timed(lambda: numpy.shuffle(values)) / elements
    mine = np.arange(elements, dtype=np.int32)
    Mt19937(SEED).shuffle(mine)
    require_equal("shuffle", values, mine)
    for name, (weights, samples) in blends().items():
        arrays, expected = room(samples), room(samples)
        build = helpers.build_blending_indices
        arguments = (*expected, weights, len(weights), samples, False)
        found[name] = timed(lambda: build(*arguments)) / samples  # noqa: B023
        Blender.by_weight(weights).next(*arrays)
        for left, right in zip(arrays, expected, strict=True):
            require_equal(name, left, right)
    total = int(sizes().sum())
    arrays, expected = room(total), room(total)
    build = helpers.build_exhaustive_blending_indices
    found["exhaustive, 800 corpora"] = timed(lambda: build(*expected, sizes(), 800)) / total
    Blender.exhaustive(sizes()).next(*arrays)
    for left, right in zip(arrays, expected, strict=True):
        require_equal("exhaustive", left, right)
    return {name: 1e9 * seconds for name, seconds in found.items()}


def require_equal(name: str, left: NDArray[Any], right: NDArray[Any]) -> None:
    """End here if a result differs."""
    if not np.array_equal(left, right):
        sys.exit(f"{name} differs")


def with_instructions(kind: str, elements: int) -> dict[str, float]:
    """Return the nanoseconds of our kernels with no better instructions than some."""
    command = [sys.executable, __file__, "--ours", "--elements", str(elements)]
    environment = {**os.environ, "DISTCACHE_INSTRUCTIONS": kind}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def two_halves(samples: int = 4_000_000) -> tuple[float, float]:
    """Return the seconds of a blend of 800, by one core, and by two that guess and verify."""
    weights = np.random.default_rng(0).lognormal(0, 1.5, 800)
    weights /= weights.sum()
    corpora, places = room(samples)
    half = samples // 2

    def draw(begin: int, end: int) -> tuple[list[int], list[int]]:
        blender = Blender.by_weight(weights)
        before = max(begin - 8192, 0)
        blender.resume(estimate_counts(weights, np.full(800, 2**62), before))
        blender.skip(begin - before)
        first = blender.taken
        blender.next(corpora[begin:end], places[begin:end])
        return first, blender.taken

    alone = timed(lambda: draw(0, samples))
    with ThreadPoolExecutor(2) as pool:
        begin = time.perf_counter()
        lower, upper = pool.map(draw, (0, half), (half, samples))
        together = time.perf_counter() - begin
    if lower[1] != upper[0]:
        sys.exit("the guess was wrong")
    return alone, together


def copy_speed() -> float:
    """Return the bytes per second that a core reads and writes when it copies memory."""
    source, target = np.ones(1 << 25), np.ones(1 << 25)
    return 2 * source.nbytes / min(timed(lambda: np.copyto(target, source)) for _ in range(5))


def rows(results: dict[str, Any], speed: float) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield "| kernel | reference | distcache | | AVX2 | | baseline | | limit | distance |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    for name, reference in results["reference"].items():
        mine = results["distcache"][name]
        cells = [
            f"{found[name]:.1f} ns | {reference / found[name]:.1f}x"
            for found in (results["distcache"], results["avx2"], results["baseline"])
        ]
        limit = 1e9 * (8 if name == "shuffle" else BYTES_OF_SAMPLE) / speed
        yield (
            f"| {name} | {reference:.1f} ns | {' | '.join(cells)} | {limit:.2f} ns | "
            f"{mine / limit:.0f}x |"
        )


def main() -> None:
    """Measure all, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=100_000_000, help="of the shuffle")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ours", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.ours:
        print(json.dumps(ours(options.elements)))
        return
    contenders = {
        "reference": theirs,
        "distcache": ours,
        "avx2": lambda elements: with_instructions("avx2", elements),
        "baseline": lambda elements: with_instructions("baseline", elements),
    }
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    halves = []
    for _ in range(options.rounds):
        for name, run in contenders.items():
            runs[name].append(run(options.elements))
        halves.append(two_halves())
    results: dict[str, Any] = {
        name: {key: statistics.median(run[key] for run in found) for key in found[0]}
        for name, found in runs.items()
    }
    speed = copy_speed()
    gain = statistics.median(alone / together for alone, together in halves)
    facts = machine(Path(tempfile.gettempdir())) | {"copying": f"{speed / 1e9:.1f} GB/s"}
    if options.json:
        print(json.dumps({"machine": facts, "two halves": gain, "results": results}, indent=2))
        return
    print(", ".join(f"{name}: {value}" for name, value in facts.items()), end="\n\n")
    print("\n".join(rows(results, speed)))
    print(f"\nA blend of 800 in two halves at once, from a guess that is verified: {gain:.2f}x")


if __name__ == "__main__":
    main()
