"""What sites have that others have not: tasks bound to their cores, and plugins with containers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.jobs import Story, command, wait_for
from tests.cluster.settings import SCRIPTS

PLUGIN = Path(__file__).with_name("stand_in.c")
CORES = 2
SHAPE = ("--nodes", "3", "--ntasks-per-node", "1", "--cpus-per-task", str(CORES))


@pytest.fixture(scope="module")
def site(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with tasks bound to their cores, and a plugin of the site."""
    before = cluster.settings
    library = before.base / "stand_in.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, PLUGIN], check=True)
    before.plugins.write_text(f"required {library}\n")
    try:
        cluster.reconfigure(replace(before, bound=True, cpus=CORES))
        yield cluster
    finally:
        before.plugins.unlink()
        cluster.reconfigure(before)


@pytest.mark.more
def test_steps_have_the_cores_of_their_job(site: Cluster, shared: Path, tmp_path: Path) -> None:
    """A step gets one core unless it asks: the threads of a build say what it has."""
    story = Story.small(shared)
    job = story.sbatch(SCRIPTS / "build.sbatch", story.config, story.caches, "c", options=SHAPE)
    assert wait_for(job, "COMPLETED", "FAILED") == "COMPLETED", story.log(job)
    assert story.record().threads == CORES
    assert len(story.record().ranks) == 3
    assert story.difference(tmp_path) == ""


@pytest.mark.more
def test_containers(site: Cluster, shared: Path, tmp_path: Path) -> None:
    """Options of a site's plugin reach the step, from a command line or a configuration."""
    noted = shared / "tasks"
    expected = [f"node{number} {number - 1} {CORES}" for number in (1, 2, 3)]
    story = Story.small(shared)
    words = ["submit", story.config, "-o", story.caches, *SHAPE, "--wait", "--json"]
    given = command(*words, "--name", "c", f"--srun=--container-image={noted}")
    assert given.returncode == 0, given.stderr
    assert sorted(noted.read_text().splitlines()) == expected
    assert story.difference(tmp_path) == ""

    noted.unlink()
    fields = story.fields | {"slurm": {"srun": [f"--container-image={noted}"]}}
    story.config.write_text(json.dumps(fields))
    configured = command(*words, "--name", "d")
    assert configured.returncode == 0, configured.stderr
    assert sorted(noted.read_text().splitlines()) == expected
