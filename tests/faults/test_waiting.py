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
    """The others wait for it in a bound, and end the job; the next one resumes."""
    words = [sys.executable, "-m", "tests.faults.driver", "reading back", str(rank), "hang", "--"]
    build = ["build", str(large_file), "-o", str(shared), "--name", "c"]
    before, _ = launch("mpich", 3)
    ended = subprocess.run(
        [*before, *words, *build],
        env=clean_environment({"DISTCACHE_TIMEOUT_SCALE": "0.002"}),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode != 0
    assert "for the other ranks" in ended.stderr
    again = start(build)
    assert again.returncode == 0, again.stderr
