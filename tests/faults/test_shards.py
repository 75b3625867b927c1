"""Indexing and selecting that are killed, run out of space, or read another's data."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.faults.test_faults import strike, visible
from tests.faults.test_users import AS_OTHER
from tests.support.corpora import LENGTHS, write_lengths
from tests.support.mds_writer import write_mds
from tests.support.processes import start

pytestmark = pytest.mark.mpi

PHASES = ["reading indices", "indexing shards", "writing the index", "examining", "publishing"]
PLAIN = (sys.executable, "-m", "tests.faults.driver", "never", "0", "none", "--")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compressed shards of tokens."""
    random = np.random.default_rng(1)
    samples = [{"tokens": random.integers(0, 9000, n).astype("i4")} for n in range(20, 120)]
    directory = tmp_path_factory.mktemp("mds") / "data"
    return write_mds(directory, {"tokens": "ndarray:int32"}, samples, codec="zstd", per_shard=9)


def contents(directory: Path) -> dict[str, bytes]:
    """Return every file that has been published."""
    assert [path for path in directory.iterdir() if path.name.startswith(".")] == []
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture(scope="module")
def expected(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What one process makes."""
    directory = tmp_path_factory.mktemp("expected")
    done = start(["index", "mds", data, "-o", directory / "c"], program=PLAIN)
    assert done.returncode == 0, done.stderr
    return contents(directory)


@pytest.mark.few(1)
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("place", PHASES)
def test_indexing_that_is_killed(
    place: str, rank: int, data: Path, expected: dict[str, bytes], shared: Path
) -> None:
    """Nothing is visible, and the next run makes the same, with any number of ranks."""
    words = ["index", "mds", data, "-o", shared / "c"]
    assert strike(place, rank, "kill", words).returncode != 0
    if (place, rank) != ("publishing", 1):  # rank 0 may then have published everything
        assert visible(shared) == []
    done = start(words, 3, program=PLAIN)
    assert done.returncode == 0, done.stderr
    made = contents(shared)
    assert made == {name: expected[name] for name in made}
    assert sorted(made) == ["c.idx", "c.receipt.json", "c.shards"]


@pytest.mark.few(1)
@pytest.mark.parametrize("place", ["counting", "writing", "publishing"])
def test_selecting_that_is_killed(place: str, shared: Path, tmp_path: Path) -> None:
    """Nothing is visible, and the next run makes a view."""
    parent = write_lengths(tmp_path / "all", LENGTHS["third"])
    words = ["select", parent, "-o", shared / "v", "--sample", "0.5"]
    assert strike(place, 0, "kill", words).returncode != 0
    assert visible(shared) == []
    assert start(words, 2, program=PLAIN).returncode == 0
    assert sorted(os.listdir(shared)) == ["v.bin", "v.idx", "v.receipt.json"]
    assert start(["check", shared / "v", "--readback", 9]).returncode == 0
    assert start(["materialize", shared / "v", "-o", shared / "m"], 2).returncode == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of a megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], check=True)
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_full_disk(data: Path, expected: dict[str, bytes], small_disk: Path) -> None:
    """It ends with 6, and what to do; with space the next run goes on."""
    words = ["index", "mds", data, "-o", small_disk / "c"]
    (small_disk / "filler").write_bytes(bytes(252 << 10))
    done = start(words)
    assert done.returncode == 6, done.stderr
    (small_disk / "filler").unlink()
    assert start(words).returncode == 0
    assert contents(small_disk) == expected


def shared_memory() -> set[str]:
    """Return the names in /dev/shm but for those of MPI, which tests beside this one make."""
    of_mpi = ("mpich", "vader", "ompi", "pmix")
    return {name for name in os.listdir("/dev/shm") if not name.startswith(of_mpi)}


@pytest.mark.more
def test_the_data_of_another_user(data: Path) -> None:
    """It is read in place; nothing is left there, nor in /dev/shm."""
    before = shared_memory()
    with tempfile.TemporaryDirectory(prefix="users-") as name:
        root = Path(name)
        root.chmod(0o755)
        (root / "own").mkdir()
        (root / "own").chmod(0o777)
        there = root / "data"
        there.mkdir(mode=0o755)
        for path in data.iterdir():
            (there / path.name).write_bytes(path.read_bytes())
        listing = sorted((path.name, path.stat().st_mtime_ns) for path in there.iterdir())
        words: list[list[Any]] = [
            ["index", "mds", there, "-o", root / "own" / "c"],
            ["materialize", root / "own" / "c", "-o", root / "own" / "m"],
            ["check", root / "own" / "c", "--readback", 5],
        ]
        for command in words:
            done = start(command, program=AS_OTHER)
            assert done.returncode == 0, done.stderr
        assert sorted((path.name, path.stat().st_mtime_ns) for path in there.iterdir()) == listing
    assert shared_memory() <= before
