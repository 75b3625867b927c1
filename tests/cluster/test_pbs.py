"""Slurm's emulation of PBS reads what `distcache submit --scheduler pbs` writes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.grid_engine import PACKAGES
from tests.cluster.jobs import Story, command, environment, wait_for

TORQUE = PACKAGES.parent / "torque" / "usr" / "bin"


def test_a_prejob_and_training(
    cluster: Cluster, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes, ranks, the limit and the dependency are understood."""
    monkeypatch.chdir(shared)  # where the emulation puts logs
    story = Story.small(shared)
    script = shared / "train.sh"
    lines = ["#!/bin/bash", "#PBS -l nodes=1", f"#PBS -o {shared}/train.log", "#PBS -j oe"]
    script.write_text("\n".join([*lines, f'echo "$DISTCACHE_CACHE $1" >{shared}/out\n']))
    env = environment(PATH=f"{TORQUE}:{os.environ['PATH']}")
    words = ["submit", story.config, "-o", story.caches, "--name", "c", "--scheduler", "pbs"]
    shape = ["--nodes", "2", "--ntasks-per-node", "2", "--time", "5", "--mem", "1G", "--json"]
    done = command(*words, *shape, "--", script, "a b", env=env)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    prejob = found["prejob"]["job"].partition(".")[0]
    ended = wait_for(prejob, "COMPLETED", "FAILED", "CANCELLED")
    assert ended == "COMPLETED", "\n".join(path.read_text() for path in shared.glob("c-build*"))
    training = found["training"].partition(".")[0]
    assert wait_for(training, "COMPLETED", "FAILED", "CANCELLED") == "COMPLETED"
    assert (shared / "out").read_text() == f"{story.cache} a b\n"
    ranks = story.record().ranks
    assert len(ranks) == 4
    assert len({rank.host for rank in ranks}) == 2
    assert story.difference(tmp_path) == ""
