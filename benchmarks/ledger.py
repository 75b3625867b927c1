"""Traces, searches, reports and rests of a large cache: seconds of CPU on one core.

Five corpora, 60 million documents of log-normal lengths (600 tokens), 10^8 samples of 512 tokens,
up to 3.2 epochs. 20,000 steps of 1,024 samples are traced, then written as Parquet; ten documents
are searched for; the report is made with one and with two threads; what is left after half of the
samples is written. Medians of rounds, after one that is not counted.

    python benchmarks/ledger.py [--documents 6e7] [--samples 1e8] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from machine import machine

from distcache.corpus.mock import Mock, write_mock
from distcache.ledger.report import make_report
from distcache.ledger.rest import RestOptions, Trained, write_rest
from distcache.ledger.steps import Sampling, Steps
from distcache.ledger.trace import Trace, trace
from distcache.ledger.trace_table import columns_of, known_columns, write_parquet
from distcache.ledger.traced_run import TracedRun
from distcache.ranks.progress import NullProgress
from tests.support.caches import build_here

WEIGHTS = (0.45, 0.12, 0.2, 0.13, 0.1)
STEPS, BATCH = 20_000, 1024


def make(directory: Path, documents: int, samples: int) -> Path:
    """Make the corpora up, and build the cache."""
    made = directory / "corpora"
    write_mock(Mock(documents=documents, corpora=len(WEIGHTS)), made, 2, NullProgress())
    prefixes = sorted(str(path.with_suffix("")) for path in made.glob("*.idx"))
    fields = {
        "sequence_length": 512,
        "split": "99,1,0",
        "samples": {"train": samples, "valid": 1000, "test": 0},
        "blend": [
            {"path": path, "weight": weight} for path, weight in zip(prefixes, WEIGHTS, strict=True)
        ],
    }
    return Path(build_here(fields, directory, "ledger").path)


def measure(name: str, rounds: int, action: Callable[[], Any]) -> None:
    """Write the median of the rounds, in seconds of CPU and of the clock."""
    action()
    spent, passed = [], []
    for _ in range(rounds):
        begin, started = time.process_time(), time.perf_counter()
        said = action()
        spent.append(time.process_time() - begin)
        passed.append(time.perf_counter() - started)
    print(
        f"{name}: {statistics.median(spent):.2f} s of CPU, {statistics.median(passed):.2f} s"
        f"{'' if said is None else f' ({said})'}",
        flush=True,
    )


def run_of(opened: Trace, steps: Steps) -> str:
    """Trace steps, and count the parts."""
    run = TracedRun(opened, Sampling("single", 4, 64))
    return f"{sum(len(found.traced.sequences) for found in run.of_steps(steps)):,} parts"


def table_of(opened: Trace, steps: Steps, path: Path) -> str:
    """Trace steps, and write them as Parquet."""
    run = TracedRun(opened, Sampling(), steps)
    names = known_columns([run], sources=False)
    write_parquet(path, names, (columns_of(one, opened, names) for one in run.of_steps(steps)))
    return f"{path.stat().st_size / 1e6:.0f} MB"


def main() -> None:
    """Make the cache, and measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--documents", type=float, default=6e7)
    parser.add_argument("--samples", type=float, default=1e8)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        print(json.dumps(machine(directory)))
        path = make(directory, int(options.documents), int(options.samples))
        opened = trace(path)
        count = min(STEPS, len(opened) // BATCH)
        numbers = np.arange(1, count + 1)
        steps = Steps.of(numbers, numbers * BATCH, np.full(count, BATCH))
        wanted = np.arange(10) * (len(opened.idx(0).lengths) // 11)
        table = directory / "steps.parquet"
        measure("open", options.rounds, lambda: len(trace(path)))
        measure(f"{count:,} steps", options.rounds, lambda: run_of(opened, steps))
        measure(
            f"{count:,} steps, as Parquet",
            options.rounds,
            lambda: table_of(opened, steps, table),
        )
        measure(
            "ten documents", options.rounds, lambda: f"{len(opened.positions(0, wanted))} positions"
        )
        for threads in (1, 2):
            measure(
                f"report, {threads} threads",
                options.rounds,
                lambda threads=threads: make_report(opened, batch=BATCH, threads=threads) and None,
            )
        half = Trained(trace(path), len(opened) // 2)
        begin, started = time.process_time(), time.perf_counter()
        rest = write_rest([half], str(directory / "rest"), RestOptions(), 2)
        spent, passed = time.process_time() - begin, time.perf_counter() - started
        count = sum(one.sequences for one in rest.corpora)
        print(f"rest: {spent:.1f} s of CPU, {passed:.1f} s ({count:,} sequences)")


if __name__ == "__main__":
    main()
