"""Logs of Megatron's own say which samples its own loaders served, over jobs and rollbacks."""

from __future__ import annotations

import inspect
import json
import os
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from distcache.ledger.steps import Sampling, logged_steps
from distcache.ledger.trace import trace
from distcache.ledger.traced_run import TracedRun
from distcache.megatron.run_options import run_of_log
from distcache.megatron.training_log import LoggedJob, parse_log
from tests.ledger.runs import build_numbered
from tests.support.processes import start

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.since("0.19"),
]


def train(
    path: Path, job: int, first: int, last: int, consumed: int, interval: int
) -> list[LoggedJob]:
    """Train from one iteration to another, and return what the log says."""
    words = [path.parent, job, first, last, consumed, interval]
    here = {"CACHE": str(path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = start(
        list(map(str, words)),
        environment=here,
        program=(sys.executable, "-m", "tests.judges.training_run"),
    )
    assert done.returncode == 0, done.stderr
    return parse_log(f"job {job}", done.stdout.splitlines(keepends=True))


@pytest.mark.parametrize("interval", [1, 3])
def test_steps_of_a_log_are_those_that_were_served(interval: int, tmp_path: Path) -> None:
    """Two jobs with batches by a schedule, the second from a checkpoint within the first."""
    path = build_numbered(tmp_path)
    jobs = train(path, 0, 0, 9, 0, interval)
    consumed = int(logged_steps(jobs)[0].ends[5])  # of the checkpoint after iteration 6
    jobs += train(path, 1, 6, 12, consumed, interval)
    steps, notes = logged_steps(jobs)
    assert notes == []
    assert steps.numbers.tolist() == [*range(1, 10), *range(7, 13)]
    assert steps.numbers[steps.rolled_back].tolist() == [7, 8, 9]
    assert set((steps.ends - steps.begins).tolist()) == {8, 12}
    sampling = Sampling.of_run(run_of_log(jobs[-1]), "train")
    assert sampling == Sampling("single", 2, 2)
    run = TracedRun(trace(path), sampling)
    for job in (0, 1):
        served = json.loads((path.parent / f"served-{job}.json").read_text())
        own = steps.take(steps.jobs == job)
        found = []
        for some in run.of_steps(own):
            assert some.ranks is not None
            columns = (own.numbers[some.rows], *some.ranks, some.traced.positions)
            found += np.stack(columns, axis=1).tolist()
        assert sorted(found) == sorted(served)


def test_the_line_of_a_checkpoint_is_megatrons() -> None:
    """What says the iteration of a checkpoint is written as it is looked for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.training import checkpointing  # noqa: PLC0415

    text = inspect.getsource(checkpointing)
    assert "successfully loaded checkpoint from" in text
    assert "at iteration {iteration}" in text
