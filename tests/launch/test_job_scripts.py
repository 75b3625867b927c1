"""The job scripts that come with distcache, with stand-ins for the commands that they call."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

TRAIN = Path(__file__).parents[2] / "slurm" / "train.sbatch"


@pytest.mark.parametrize(("failures", "trains"), [(0, True), (1, True), (2, False)])
def test_localizing_is_tried_once_more(failures: int, trains: bool, tmp_path: Path) -> None:
    """A step whose MPI did not start is repeated; one that fails again ends the job."""
    tried = tmp_path / "tried"
    commands = {
        "srun": f"case $* in *localize*) echo >>{tried}; [ $(wc -l <{tried}) -gt {failures} ];; "
        f"*torchrun*) touch {tmp_path}/trained;; esac",
        "distcache": "true",
        "sleep": "true",
        "scontrol": "echo node1",
    }
    for name, line in commands.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    variables = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node1", "SLURM_JOB_NUM_NODES": "1"}
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "DISTCACHE_CACHE": "/c.h5", **variables}
    done = subprocess.run(
        ["bash", TRAIN, "train.py"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (tmp_path / "trained").exists() == trains, done.stderr
    assert (done.returncode == 0) == trains
    assert len(tried.read_text().splitlines()) == min(failures + 1, 2)
