"""Who waits for a builder that is killed learns it in seconds."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import distcache
from distcache.cache.readiness import Readiness, State
from distcache.errors import BuildInterrupted
from tests.support.processes import clean_environment, launch, start

pytestmark = pytest.mark.mpi


def test_a_killed_builder(large_file: Path, shared: Path) -> None:
    """It is noticed by those who wait, in seconds; a builder that resumes is waited for."""
    words = [sys.executable, "-m", "tests.faults.driver", "reading back", "0", "kill", "--"]
    words += ["build", str(large_file), "-o", str(shared), "--name", "c"]
    environment = clean_environment()
    seen: list[Readiness] = []
    outcome: list[BaseException] = []

    def wait() -> None:
        try:
            distcache.wait(shared / "c.h5", 60, seen.append)
        except BuildInterrupted as error:
            outcome.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    killed = subprocess.run(words, env=environment, capture_output=True, check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    begin = time.monotonic()
    waiter.join(30)
    assert time.monotonic() - begin < 15
    assert "the builder has died" in str(outcome[0])
    assert any(found.state is State.building and found.phase for found in seen)
    done = start(["ready", shared / "c.h5"])
    assert done.returncode == 8
    assert "has died" in done.stderr
    again = start(["build", large_file, "-o", shared, "--name", "c"])
    assert again.returncode == 0
    assert distcache.wait(shared / "c.h5", 1).state is State.ready


@pytest.mark.few(1)
@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_hangs(large_file: Path, shared: Path, rank: int) -> None:
    """It is named to those who wait, though the heartbeat continues; another job builds apart."""
    words = ["tests.faults.driver", "reading back", str(rank), "hang", "--"]
    build = ["build", str(large_file), "-o", str(shared), "--name", "c"]
    before, _ = launch("mpich", 3)
    environment = clean_environment({"DISTCACHE_TIMEOUT_SCALE": "0.02"})
    hanging = subprocess.Popen(
        [*before, sys.executable, "-m", *words, *build],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not list(shared.glob(".c.h5.building*/progress.json")):
            assert hanging.poll() is None
            time.sleep(0.1)
        more = {"DISTCACHE_TIMEOUT_SCALE": "0.02"}
        done = start(["ready", shared / "c.h5", "--wait", "100"], environment=more)
        assert done.returncode == 8, done.stderr
        assert "the builder hangs" in done.stderr
        assert f"rank {rank} has made no progress" in done.stderr
        apart = start(build, environment=more)
        assert apart.returncode == 0, apart.stderr
        assert "no rank of the other job has made progress" in apart.stderr
    finally:
        hanging.kill()
        hanging.wait()
