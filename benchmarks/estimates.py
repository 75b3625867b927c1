"""What `distcache plan` estimates, against what building then takes.

    python benchmarks/estimates.py [--rounds N] [--directory DIR] [--json]

Prints a Markdown table; every ratio is measured by estimated seconds of the whole process, of
medians of alternating rounds, and should lie between 2/3 and 3/2.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from corpora import generate
from machine import machine

SHAPES = ((1, 1), (1, 2), (2, 1))  # ranks and threads
SECONDS_BETWEEN = 2  # the host takes memory back meanwhile, as between jobs


def blend(directory: Path, corpora: int, documents: int, mean: float = 600) -> list[dict[str, Any]]:
    """Write corpora, and return a blend of them."""
    name = f"{corpora}-{documents}"
    prefixes = [generate(directory / f"{name}-{i}", documents + i, mean, i) for i in range(corpora)]
    return [{"path": prefix, "weight": 1 + i % 5} for i, prefix in enumerate(prefixes)]


def cases(directory: Path) -> dict[str, dict[str, Any]]:
    """Return configurations that differ in what takes their time."""
    large = blend(directory, 1, 20_000_000)
    return {
        "tiny": configuration(blend(directory, 1, 1000), 100),
        "1 epoch of 20 million documents": configuration(large, 2_800_000),
        "4 epochs of 20 million documents": configuration(large, 10_000_000),
        "100 corpora": configuration(blend(directory, 100, 200_000), 2_000_000),
        "800 corpora": configuration(blend(directory, 800, 25_000), 2_800_000),
        "8 corpora, samples of 256": configuration(
            blend(directory, 8, 1_000_000, 100), 20_000_000, 256
        ),
    }


def configuration(
    corpora: list[dict[str, Any]], samples: int, sequence_length: int = 4096
) -> dict[str, Any]:
    """Return the fields of a configuration."""
    return {
        "sequence_length": sequence_length,
        "seed": 1234,
        "split": "98,1,1",
        "mid_level_dataset_surplus": 0.5,
        "samples": {"train": samples, "valid": 1, "test": 1},
        "blend": corpora,
    }


def foresee(config: Path, ranks: int, threads: int) -> float:
    """Return the seconds that distcache expects."""
    words = ["distcache", "plan", str(config), "--ranks", str(ranks), "--threads", str(threads)]
    done = subprocess.run([*words, "--json"], capture_output=True, text=True, check=True)
    seconds: float = json.loads(done.stdout)["estimate"]["seconds"]
    return seconds


def build(config: Path, directory: Path, ranks: int, threads: int) -> float:
    """Build into a new directory, and return the seconds that it took."""
    shutil.rmtree(directory, ignore_errors=True)
    time.sleep(SECONDS_BETWEEN)
    launcher = ["mpiexec", "-n", str(ranks)] if ranks > 1 else []
    words = ["distcache", "build", str(config), "-o", str(directory), "--threads", str(threads)]
    begin = time.perf_counter()
    subprocess.run([*launcher, *words, "--log-format", "none"], capture_output=True, check=True)
    return time.perf_counter() - begin


def measure(work: Path, rounds: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each configuration and shape."""
    for name, fields in cases(work).items():
        config = work / "config.json"
        config.write_text(json.dumps(fields), encoding="utf-8")
        taken: dict[tuple[int, int], list[float]] = {shape: [] for shape in SHAPES}
        for _ in range(rounds):
            for shape in SHAPES:
                taken[shape].append(build(config, work / "caches", *shape))
        for (ranks, threads), seconds in taken.items():
            found = statistics.median(seconds)
            estimated = foresee(config, ranks, threads)
            yield {
                "case": name,
                "ranks": ranks,
                "threads": threads,
                "measured": found,
                "estimated": estimated,
                "ratio": found / estimated,
            }


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", help="where to make a temporary directory")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        rows = list(measure(Path(directory), options.rounds))
        facts = machine(Path(directory))
    if options.json:
        print(json.dumps({"machine": facts, "rows": rows}, indent=2))
        return
    print(", ".join(f"{name}: {value}" for name, value in facts.items()), end="\n\n")
    print("| case | ranks | threads | measured | estimated | ratio |")
    print("|---|--:|--:|--:|--:|--:|")
    for row in rows:
        cells = [row["case"], row["ranks"], row["threads"], f"{row['measured']:.2f} s"]
        cells += [f"{row['estimated']:.2f} s", f"{row['ratio']:.2f}"]
        print(f"| {' | '.join(map(str, cells))} |")


if __name__ == "__main__":
    main()
