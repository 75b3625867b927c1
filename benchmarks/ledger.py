"""Traces, searches, reports and rests of a large cache.

Five corpora, 60 million documents of log-normal lengths (600 tokens), 10^8 samples of 512 tokens,
up to 3.2 epochs; 20,000 steps of 1,024 samples. Each round is a process that has opened the cache.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.corpora import build, write_config
from benchmarks.harness import Run, Table, command, process, timed
from distcache.ledger.consumed import Consumed
from distcache.ledger.report import make_report
from distcache.ledger.rest import RestOptions, Trained, write_rest
from distcache.ledger.steps import Sampling, Steps
from distcache.ledger.trace import Trace, trace
from distcache.ledger.trace_table import columns_of, known_columns, write_parquet
from distcache.ledger.traced_run import TracedRun

MARKS = ("ledger",)
WEIGHTS = (0.45, 0.12, 0.2, 0.13, 0.1)
DOCUMENTS, SAMPLES = 60_000_000, 100_000_000
STEPS, BATCH = 20_000, 1024


def steps_of(opened: Trace) -> Steps:
    """Return the first steps of a run."""
    numbers = np.arange(1, min(STEPS, len(opened) // BATCH) + 1)
    return Steps.of(numbers, numbers * BATCH, np.full(len(numbers), BATCH))


def traced(opened: Trace, _: Path) -> None:
    """Trace steps."""
    run = TracedRun(opened, Sampling("single", 4, 64))
    for _found in run.of_steps(steps_of(opened)):
        pass


def as_parquet(opened: Trace, directory: Path) -> None:
    """Trace steps, and write them as Parquet."""
    run = TracedRun(opened, Sampling(), steps_of(opened))
    names = known_columns([run], sources=False)
    found = (columns_of(one, opened, names) for one in run.of_steps(steps_of(opened)))
    write_parquet(directory / "steps.parquet", names, found)


def searched(opened: Trace, _: Path) -> None:
    """Look for all positions of ten documents."""
    opened.positions(0, np.arange(10) * (len(opened.idx(0).lengths) // 11))


def rest(opened: Trace, directory: Path) -> None:
    """Write what is left after half of the samples."""
    shutil.rmtree(directory / "rest", ignore_errors=True)
    write_rest(
        [Trained(opened, Consumed.of_number(len(opened) // 2))],
        str(directory / "rest"),
        RestOptions(),
        2,
    )


ACTIONS: dict[str, Callable[[Trace, Path], Any]] = {
    "20,000 steps of 1,024 samples": traced,
    "the same, and as Parquet": as_parquet,
    "all positions of ten documents": searched,
    "report, with steps, one thread": lambda opened, _: make_report(opened, batch=BATCH, threads=1),
    "the same, two threads": lambda opened, _: make_report(opened, batch=BATCH, threads=2),
    "rest after half of the samples": rest,
}


def act(name: str, cache: str, directory: str) -> dict[str, float]:
    """Do one thing, twice: the first one touches the files."""
    opened = trace(cache)
    ACTIONS[name](opened, Path(directory))
    return timed(lambda: ACTIONS[name](opened, Path(directory)))


def tables(run: Run) -> Iterator[Table]:
    """Measure each action."""
    work = run.directory
    words = ["--count", len(WEIGHTS), "--documents", run.size(DOCUMENTS), "-o", work / "corpora"]
    command("distcache", "mock", *words)
    prefixes = sorted(str(path.with_suffix("")) for path in (work / "corpora").glob("*.idx"))
    blend = [{"path": path, "weight": w} for path, w in zip(prefixes, WEIGHTS, strict=True)]
    config = write_config(work / "c.json", blend, run.size(SAMPLES), 1000, sequence_length=512)
    cache = build(config, work)
    found = run.in_turn({name: partial(process, act, name, cache, work) for name in ACTIONS})
    rows = [[name, own.said("cpu"), own.said("seconds")] for name, own in found.items()]
    yield Table("ledger", ["", "of CPU", "seconds"], rows)
