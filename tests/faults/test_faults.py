"""Every step killed, the disk full, jobs racing: nothing torn is seen, and nothing hangs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from distcache.cache import open_cache
from distcache.cache.digests import verify_cache
from tests.support import here
from tests.support.processes import DISTCACHE, LIMIT, clean_environment, launch, start

pytestmark = pytest.mark.mpi

PHASES = [
    "examining corpora",
    "planning",
    "claiming",
    "laying out",
    "looking for an earlier run",
    "building",
    "reading back",
    "publishing",
]
DRIVER = (sys.executable, "-m", "tests.faults.driver")


def strike(
    place: str, rank: int, action: str, words: list[Any], ranks: int = 2, launcher: str = "mpich"
) -> subprocess.CompletedProcess[str]:
    """Run a build in which one rank does something terrible."""
    program = (*DRIVER, place, str(rank), action, "--")
    environment = {"DISTCACHE_TIMEOUT_SCALE": "0.3"} if action == "term" else {}
    return start(words, ranks, launcher, program=program, environment=environment)


def visible(directory: Path) -> list[str]:
    """Return the names in a directory that are not hidden."""
    return sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))


@pytest.mark.few(3)
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("place", [*PHASES, "write:1", "write:3", "write:7"])
def test_a_rank_that_is_killed(
    place: str, rank: int, large_file: Path, serial_bytes: bytes, shared: Path
) -> None:
    """The job ends, nothing is visible, and the next run makes the same bytes."""
    words = ["build", large_file, "-o", shared, "--threads", "1"]
    died = strike(place, rank, "kill", words)
    assert died.returncode != 0
    if (place, rank) != ("publishing", 1):  # rank 0 may then have published a whole cache
        assert visible(shared) == []
    done = start([*words, "--json"], 2)
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    if place in PHASES[6:]:
        assert outcome["built"] == 0
    assert Path(outcome["path"]).read_bytes() == serial_bytes
    assert not [path for path in shared.iterdir() if path.name.startswith(".")]


@pytest.mark.few(1)
@pytest.mark.parametrize("place", ["examining corpora", "building", "write:3", "reading back"])
def test_a_rank_is_killed_under_open_mpi(
    place: str, large_file: Path, serial_bytes: bytes, shared: Path
) -> None:
    """A rank is killed under open MPI, and one process alone resumes what two began."""
    words = ["build", large_file, "-o", shared]
    assert strike(place, 1, "kill", words, launcher="openmpi").returncode != 0
    assert visible(shared) == []
    done = start(words)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == serial_bytes


@pytest.mark.few(2)
@pytest.mark.parametrize("action", ["raise", "term"])
@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_on_one_rank_ends_all(
    action: str, rank: int, large_file: Path, shared: Path
) -> None:
    """Nobody waits for a rank that is gone; a signal says that the build can be resumed."""
    died = strike("building", rank, action, ["build", large_file, "-o", shared])
    assert died.returncode != 0
    assert ("nobody foresaw this" if action == "raise" else "run again to resume") in died.stderr
    assert visible(shared) == []


@pytest.mark.few(2)
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("place", ["write:1", "write:4", "sync:1"])
def test_one_rank_without_space_ends_all(
    place: str, rank: int, large_file: Path, serial_bytes: bytes, shared: Path
) -> None:
    """All agree on the error, also where only syncing finds it, and the next run resumes."""
    words = ["build", large_file, "-o", shared, "--threads", "1"]
    died = strike(place, rank, "lose", words)
    assert died.returncode == 6, died.stderr
    assert died.stderr.count("No space left on device") == 1
    done = start(words, 2)
    assert Path(done.stdout.strip()).read_bytes() == serial_bytes


@pytest.mark.few(2)
@pytest.mark.parametrize("action", ["term", "usr1", "usr2", "twice"])
def test_a_signal_alone(action: str, large_file: Path, shared: Path) -> None:
    """One process ends with exit code 8, and leaves what it has finished; so with two signals."""
    died = strike("reading back", 0, action, ["build", large_file, "-o", shared], ranks=1)
    assert died.returncode == 8, died.stderr
    assert "Traceback" not in died.stderr
    done = start(["build", large_file, "-o", shared, "--json"])
    assert json.loads(done.stdout)["built"] == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem that a large cache does not fill."""
    directory = tmp_path / "disk"
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", str(directory)], check=True)
    yield directory
    subprocess.run(["umount", str(directory)], check=True)


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "place", ["claiming", "looking for an earlier run", "building", "laying out", "publishing"]
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_full_disk(
    place: str, ranks: int, small_disk: Path, large_file: Path, serial_bytes: bytes
) -> None:
    """Before or while it is written to: exit code 6, nothing visible, and resumed with room."""
    words = ["build", large_file, "-o", small_disk, "--threads", "1"]
    died = strike(place, 0, "fill", words, ranks)
    assert died.returncode == 6, died.stderr
    assert "space" in died.stderr
    assert "Traceback" not in died.stderr
    assert visible(small_disk) == ["filler"]
    (small_disk / "filler").unlink()
    done = start(words, ranks)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == serial_bytes


def run_in_background(
    words: list[Any], ranks: int, program: Sequence[str] = (DISTCACHE,)
) -> subprocess.Popen[str]:
    """Start a build and do not wait for it."""
    before, needed = launch("mpich", ranks)
    return subprocess.Popen(
        [*before, *program, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(needed),
        start_new_session=True,
    )


def test_builds_that_race(large_file: Path, serial_bytes: bytes, shared: Path) -> None:
    """One publishes, and the others reuse it."""
    words = ["build", large_file, "-o", shared, "--json"]
    jobs = [run_in_background(words, ranks) for ranks in (1, 2, 2)]
    outcomes = []
    for job in jobs:
        output, errors = job.communicate(timeout=LIMIT)
        assert job.returncode == 0, errors
        outcomes.append(json.loads(output))
    assert [outcome["reused"] for outcome in outcomes].count(False) == 1
    assert Path(outcomes[0]["path"]).read_bytes() == serial_bytes
    assert len(visible(shared)) == 2


@pytest.mark.few(2)
@pytest.mark.parametrize("delay", [0.1, 0.2, 0.3, 0.4, 0.5])
def test_a_signal_while_ranks_join(delay: float, large_file: Path, shared: Path) -> None:
    """Ctrl-C at the start of a job ends all of it, also in the middle of joining."""
    # On a fast machine a build ends within half a second.
    slow = (sys.executable, "-m", "tests.faults.slow_build", "5")
    words = ["build", large_file, "-o", shared, "--log-format", "plain"]
    job = run_in_background(words, 2, slow)
    time.sleep(delay)
    job.send_signal(signal.SIGINT)
    job.communicate(timeout=LIMIT)
    assert job.returncode != 0
    assert visible(shared) == []


@pytest.mark.parametrize("victim", [0, 1])
def test_one_of_two_racing_builds_dies(
    victim: int, large_file: Path, serial_bytes: bytes, shared: Path
) -> None:
    """Whether it is the one that builds or the one that waits, the other has the cache."""
    words = ["build", large_file, "-o", shared]
    first = run_in_background(words, 2)
    while not list(shared.glob(".*.building/journal.*")):
        assert first.poll() is None
        time.sleep(0.02)
    second = run_in_background(words, 2)
    time.sleep(0.3)
    os.killpg((first, second)[victim].pid, signal.SIGKILL)
    survivor = (second, first)[victim]
    output, errors = survivor.communicate(timeout=LIMIT)
    assert survivor.returncode == 0, errors
    assert Path(output.strip()).read_bytes() == serial_bytes
    verify_cache(open_cache(output.strip()))
    (first, second)[victim].communicate(timeout=LIMIT)


@pytest.mark.few(2)
@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("what", ["build", "localize"])
def test_an_error_in_a_program_that_calls_distcache(
    what: str, rank: int, blend_config: dict[str, Any], tmp_path: Path
) -> None:
    """Ends all ranks at once as from the command line, with the rank, its host and what to do."""
    given = tmp_path / "c.json"
    given.write_text(json.dumps(blend_config))
    if what == "localize":
        given = Path(here.build(blend_config, tmp_path, "before").path)
    words = [what, rank, given, tmp_path / "out"]
    begin = time.monotonic()
    done = start(words, 3, program=(sys.executable, "-m", "tests.faults.library"))
    assert time.monotonic() - begin < 60
    assert done.returncode != 0
    assert f"distcache: rank {rank} on {socket.gethostname()}: not enough memory" in done.stderr
    assert "run again" in done.stderr
