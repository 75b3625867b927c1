"""One cluster for all tests of this directory, and what they run on it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.settings import Settings


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say with every failure what Slurm thinks of nodes and jobs."""
    report = yield
    if report.failed and "SLURM_CONF" in os.environ:
        log = Path(os.environ["SLURM_CONF"]).parent.parent / "log" / "slurmctld.log"
        for words in (["sinfo", "-N", "-l"], ["squeue", "-l"], ["tail", "-n", "60", str(log)]):
            done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
            report.sections.append((" ".join(words), done.stdout + done.stderr))
    return report


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Three nodes with Slurm, MPI and a network filesystem."""
    base = Path(tempfile.mkdtemp(prefix="distcache-cluster-"))
    made = Cluster(Settings(base))
    try:
        made.up()
        yield made
    finally:
        made.down()
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture
def shared(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    """A directory of the network filesystem, seen by all nodes."""
    directory = cluster.settings.shared / tmp_path.name
    directory.mkdir()
    yield directory
    shutil.rmtree(directory, ignore_errors=True)
