"""What all jobs read, once for each process of tests, and how they are struck."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.jobs.jobs import Inputs, Runner


@pytest.fixture(scope="session")
def jobs(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """The jobs of the table over the same inputs."""
    return Runner(Inputs(tmp_path_factory.mktemp("inputs")), library)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a filesystem of a size in memory, or changes its size."""
    directory = tmp_path / "disk"
    directory.mkdir()

    def resize(size: str) -> Path:
        again = "remount," if directory.is_mount() else ""
        words = ["mount", "-t", "tmpfs", "-o", f"{again}size={size}", "tmpfs", directory]
        subprocess.run(words, check=True)
        return directory

    yield resize
    subprocess.run(["umount", "-l", directory], check=directory.is_mount())
