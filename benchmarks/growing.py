"""How the time and the memory of a build grow with the documents of one corpus, as a plot.

One epoch, from a million documents to a hundred; one rank with one and with two threads, and two
ranks. Medians of some rounds; the memory is the most of any rank.

    python benchmarks/growing.py --plot docs/growing.svg
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from against_megatron import MEAN_TOKENS, SEQUENCE_LENGTH, configuration, run_distcache
from corpora import generate
from machine import machine

WAYS = {"1 rank, 1 thread": (1, 1), "1 rank, 2 threads": (1, 2), "2 ranks, 1 thread": (2, 1)}
SIZES = (10**6, 3 * 10**6, 10**7, 3 * 10**7, 10**8)

Results = Mapping[str, Mapping[int, Mapping[str, float]]]


def measure(documents: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return the median seconds and bytes of each way."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        generate(work / "corpus", documents, MEAN_TOKENS, seed=1)
        samples = int(documents * MEAN_TOKENS * 0.98) // SEQUENCE_LENGTH
        config = work / "config.json"
        fields = configuration([{"path": str(work / "corpus")}], "1", samples)
        config.write_text(json.dumps(fields), encoding="utf-8")
        for _ in range(rounds):
            for way, (ranks, threads) in WAYS.items():
                found[way].append(run_distcache(config, work / "out", ranks, threads))
                shutil.rmtree(work / "out")
    return {
        way: {
            figure: statistics.median(run[figure] for run in runs)
            for figure in ("builder", "memory")
        }
        for way, runs in found.items()
    }


def draw(results: Results, path: str) -> None:
    """Write the plot."""
    import matplotlib.pyplot as plt  # noqa: PLC0415  only for the plot

    figure, (times, memory) = plt.subplots(1, 2, figsize=(9, 3.5))
    for way, by_size in results.items():
        sizes = list(by_size)
        times.loglog(sizes, [by_size[size]["builder"] for size in sizes], "o-", label=way)
        memory.loglog(sizes, [by_size[size]["memory"] / 2**30 for size in sizes], "o-", label=way)
    times.set_ylabel("builder, seconds")
    memory.set_ylabel("most memory of a rank, GiB")
    for axes in (times, memory):
        axes.set_xlabel("documents, one epoch")
        axes.grid(alpha=0.3)
    times.legend()
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    """Measure all sizes, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most", type=int, default=SIZES[-1], help="documents")
    parser.add_argument("--plot", help="where to write an SVG")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results: dict[str, dict[int, dict[str, float]]] = {way: {} for way in WAYS}
    for size in (size for size in SIZES if size <= options.most):
        for way, found in measure(size, options.rounds).items():
            results[way][size] = found
    if options.plot:
        draw(results, options.plot)
    if options.json:
        print(json.dumps(results, indent=2))
        return
    facts = machine(Path(tempfile.gettempdir()))
    print(", ".join(f"{name}: {value}" for name, value in facts.items()), end="\n\n")
    print("| documents | " + " | ".join(WAYS) + " |")
    print("|--:|" + "--:|" * len(WAYS))
    for size in next(iter(results.values())):
        cells = (
            f"{by_size[size]['builder']:.2f} s, {by_size[size]['memory'] / 2**30:.2f} GiB"
            for by_size in results.values()
        )
        print(f"| {size:,} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
