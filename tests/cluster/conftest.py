"""One cluster for all tests of this directory, and what they run on it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster, what_is_missing
from tests.cluster.settings import Settings


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Three nodes with Slurm, MPI and a network filesystem."""
    if missing := what_is_missing():
        if os.environ.get("DISTCACHE_CLUSTER") == "required":
            pytest.fail(missing)
        pytest.skip(missing)
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
