"""Two Unix users who share a directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.jobs import Runner
from tests.support.caches import workspace_of
from tests.support.corpora import write_corpora
from tests.support.odd import odd
from tests.support.processes import DISTCACHE, LIMIT, clean_environment, start
from tests.support.texts import write_shard

OTHER = 54321
AS_OTHER = (sys.executable, "-m", "tests.support.as_user", str(OTHER))


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that all users may write to, as a project's on a cluster."""
    assert os.geteuid() == 0, "two users are made by root"
    with tempfile.TemporaryDirectory(prefix="users-") as name:
        root = Path(name)
        root.chmod(0o755)
        (root / "shared").mkdir()
        (root / "shared").chmod(0o777)
        yield root


@pytest.fixture
def config(place: Path, blend_config: dict[str, Any]) -> Path:
    """A configuration of corpora that all users may read."""
    (place / "data").mkdir()
    corpora = write_corpora(place / "data")
    blend = [{"path": corpora[name], "weight": 1.0} for name in ("plain", "second")]
    path = place / "c.json"
    path.write_text(json.dumps({**blend_config, "blend": blend}))
    return path


def words(config: Path) -> list[str | Path]:
    """Return the words of a build."""
    return ["build", config, "-o", config.parent / "shared", "--name", "c"]


@pytest.mark.few(1)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_finished_cache_is_used(config: Path, ranks: int) -> None:
    """A finished cache is used, whatever the other user has left beside it."""
    assert start(words(config)).returncode == 0
    left = workspace_of(config.parent / "shared" / "c.h5")
    left.make()
    (left.path / "progress.json").write_text("{}")
    left.path.chmod(0o700)
    done = start([*words(config), "--json"], ranks=ranks, program=AS_OTHER)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["reused"] is True
    assert (left.path / "progress.json").read_text() == "{}"


def test_a_dead_build_of_another_user_is_left_alone(config: Path) -> None:
    """After a bound the second user's build says what to do; it works under another name."""
    left = workspace_of(config.parent / "shared" / "c.h5")
    left.make()
    (left.path / "data").write_bytes(b"work")
    environment = {"DISTCACHE_TIMEOUT_SCALE": "0.005"}
    done = start(words(config), program=AS_OTHER, environment=environment)
    assert done.returncode == 1, done.stderr
    assert "has shown no heartbeat for 3 s; end it, or choose another directory" in done.stderr
    assert (left.path / "data").read_bytes() == b"work"
    other = [*words(config)[:-1], "d"]
    assert start(other, program=AS_OTHER).returncode == 0


def test_a_live_build_of_another_user_is_waited_for(config: Path, jobs: Runner) -> None:
    """By `build` and by `ready --wait`; both then use its cache."""
    final = config.parent / "shared" / "c.h5"
    paused = odd(jobs.library, f"strike=pause:rename:1:{final}")
    live = subprocess.Popen(
        [DISTCACHE, *map(str, words(config))],
        env=clean_environment(paused),
        stderr=subprocess.DEVNULL,
    )
    begin = time.monotonic()
    while not list(final.parent.glob(".c.h5.building*/progress.json")):
        assert time.monotonic() < begin + 30
        time.sleep(0.05)
    waiting = [
        subprocess.Popen(
            [*AS_OTHER, *map(str, more)],
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for more in ([*words(config), "--json"], ["ready", final, "--wait", "100"])
    ]
    ends = [(*process.communicate(timeout=LIMIT), process.returncode) for process in waiting]
    assert live.wait(LIMIT) == 0
    assert [code for _, _, code in ends] == [0, 0], ends
    assert json.loads(ends[0][0])["reused"] is True
    assert "died" not in ends[1][1]
    assert final.stat().st_uid == 0


@pytest.mark.few(1)
@pytest.mark.parametrize("command", ["build", "ingest", "merge"])
def test_a_directory_that_may_not_be_written_to(config: Path, command: str) -> None:
    """It is refused with what to do, and not with a hidden path."""
    closed = config.parent / "closed"
    closed.mkdir(mode=0o755)
    given = [config.parent / "data" / name for name in ("plain", "second")]
    shard = write_shard(config.parent / "shard.parquet", [[1, 2], [3]])
    more: list[Any] = {
        "build": ["build", config, "-o", closed],
        "ingest": ["ingest", "tokens", shard, "--eod", "0", "-o", closed / "t"],
        "merge": ["merge", *given, "-o", closed / "m"],
    }[command]
    done = start(more, program=AS_OTHER)
    assert done.returncode == 2, done.stderr
    assert str(closed) in done.stderr
    assert f"{closed}/." not in done.stderr


def test_ranks_of_another_user(config: Path) -> None:
    """Two ranks that all are the other user's."""
    assert start(words(config), ranks=2, program=AS_OTHER).returncode == 0
    assert (config.parent / "shared" / "c.h5").stat().st_uid == OTHER
    done = start(words(config))
    assert done.returncode == 0, done.stderr


def shared_memory() -> set[str]:
    """Return the names in /dev/shm but for those of MPI, which tests beside this one make."""
    of_mpi = ("mpich", "vader", "ompi", "pmix")
    return {name for name in os.listdir("/dev/shm") if not name.startswith(of_mpi)}


@pytest.mark.more
def test_the_data_of_another_user(jobs: Runner) -> None:
    """It is read in place; nothing is left there, nor in /dev/shm."""
    before = shared_memory()
    with tempfile.TemporaryDirectory(prefix="users-") as name:
        root = Path(name)
        root.chmod(0o755)
        (root / "own").mkdir()
        (root / "own").chmod(0o777)
        there = root / "data"
        there.mkdir(mode=0o755)
        for path in jobs.inputs.mds.iterdir():
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
