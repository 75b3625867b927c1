"""What holds for every command of all ranks: each is a row of `tests.jobs.jobs.JOBS`."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.jobs.jobs import JOBS, Runner, hidden, published
from tests.support.processes import DISTCACHE, LIMIT, clean_environment

# Calls of rank 0 that every job makes: from its first one to the names that all can see.
COMMON = (
    *("mkdir:1", "write:1", "write:3", "fsync:1", "fsync:2", "rename:1", "unlink:2"),
    *("rename:1:final", "rename:2:final"),
)
KILLS = [
    (name, strike, rank)
    for name, job in JOBS.items()
    for strike, rank in dict.fromkeys(
        [
            *((strike, 0) for strike in (*COMMON, job.middle, f"unlink:{job.cleaning}")),
            *([(job.other, 1)] if job.other else []),
        ]
    )
    if (name, strike) != ("build", "rename:2:final")  # only for the record, which may be missing
]
ERRORS = [
    (name, error, strike, rank)
    for name, job in JOBS.items()
    for error in ("ENOSPC", "EIO")
    for strike, rank in (
        *((strike, 0) for strike in ("write:1", "fsync:2", job.middle)),
        *([(job.other, 1)] if job.other else []),
    )
]


@pytest.mark.few(12)
@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize(("launcher", "ranks"), [("mpich", 3), ("openmpi", 2)])
def test_any_number_of_ranks_makes_the_same_bytes(
    name: str, launcher: str, ranks: int, jobs: Runner, shared: Path
) -> None:
    """With both launchers, to the last byte."""
    done = jobs.run(name, shared, ranks, launcher)
    assert done.returncode == 0, done.stderr
    assert published(name, shared) == jobs.expected(name) != {}
    assert hidden(shared) == []


@pytest.mark.few(26)
@pytest.mark.parametrize(("name", "strike", "rank"), KILLS)
def test_a_rank_that_is_killed(
    name: str, strike: str, rank: int, jobs: Runner, shared: Path
) -> None:
    """The job ends, all that is visible is right, and the next one makes the same bytes."""
    expected = jobs.expected(name)
    died = jobs.run(name, shared, 2, strike=f"kill:{strike}", rank=rank)
    assert died.returncode != 0, "no such call"
    seen = published(name, shared)
    assert seen == {path: expected[path] for path in seen}
    # A process that dies before its name is in the owner file is known by its silence.
    done = jobs.run(name, shared, 3, environment={"DISTCACHE_TIMEOUT_SCALE": "0.1"})
    assert done.returncode == 0, done.stderr
    assert published(name, shared) == expected
    assert hidden(shared) == []


@pytest.mark.few(3)
@pytest.mark.parametrize("name", JOBS)
def test_a_rank_that_is_killed_under_open_mpi(name: str, jobs: Runner, shared: Path) -> None:
    """One process alone goes on with what two ranks have begun."""
    strike = f"kill:{JOBS[name].other or JOBS[name].middle}"
    died = jobs.run(name, shared, 2, "openmpi", strike, rank=int(bool(JOBS[name].other)))
    assert died.returncode != 0
    done = jobs.run(name, shared)
    assert done.returncode == 0, done.stderr
    assert published(name, shared) == jobs.expected(name)
    assert hidden(shared) == []


@pytest.mark.few(16)
@pytest.mark.parametrize(("name", "error", "strike", "rank"), ERRORS)
def test_a_call_of_one_rank_that_fails(
    name: str, error: str, strike: str, rank: int, jobs: Runner, shared: Path
) -> None:
    """All ranks end with one message and its exit code, and the next job makes the same bytes."""
    died = jobs.run(name, shared, 2, strike=f"{error}:{strike}", rank=rank)
    message = {"ENOSPC": "No space left on device", "EIO": "Input/output error"}[error]
    assert died.returncode == (6 if error == "ENOSPC" else 1), died.stderr
    assert died.stderr.count(message) == 1, died.stderr
    assert "Traceback" not in died.stderr
    expected = jobs.expected(name)
    seen = published(name, shared)
    assert seen == {path: expected[path] for path in seen}
    done = jobs.run(name, shared, 2)
    assert done.returncode == 0, done.stderr
    assert published(name, shared) == expected
    assert hidden(shared) == []


@pytest.mark.few(6)
@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("action", ["term", "usr1", "usr2", "twice"])
def test_a_signal(name: str, action: str, jobs: Runner, shared: Path) -> None:
    """It ends with exit code 8, and says that running again resumes; so does a second signal."""
    died = jobs.run(name, shared, strike=f"{action}:{JOBS[name].middle}")
    assert died.returncode == 8, died.stderr
    assert "run again" in died.stderr
    assert "Traceback" not in died.stderr
    done = jobs.run(name, shared)
    assert done.returncode == 0, done.stderr
    assert published(name, shared) == jobs.expected(name)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", JOBS)
def test_a_signal_to_one_of_two_ranks(name: str, jobs: Runner, shared: Path) -> None:
    """Nobody waits for a rank that is gone."""
    limit = {"DISTCACHE_TIMEOUT_SCALE": "0.3"}
    died = jobs.run(name, shared, 2, strike=f"term:{JOBS[name].middle}", environment=limit)
    assert died.returncode != 0
    assert "run again to resume" in died.stderr
    done = jobs.run(name, shared, 2)
    assert published(name, shared) == jobs.expected(name), done.stderr


@pytest.mark.few(4)
@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_full_disk(
    name: str, ranks: int, jobs: Runner, small_disk: Callable[[str], Path]
) -> None:
    """It ends with 6, shows nothing, and says what to do; with room the next job is right."""
    disk = small_disk("16k")
    done = jobs.run(name, disk, ranks)
    assert done.returncode == 6, done.stderr
    assert "space" in done.stderr
    assert "Traceback" not in done.stderr
    assert published(name, disk) == {}
    small_disk("512m")
    done = jobs.run(name, disk, ranks)
    assert done.returncode == 0, done.stderr
    assert published(name, disk) == jobs.expected(name)
    assert hidden(disk) == []


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A directory of a filesystem that is mounted to be read."""
    directory = tmp_path / "read-only"
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", directory], check=True)
    yield directory
    subprocess.run(["umount", directory], check=True)


@pytest.mark.few(3)
@pytest.mark.parametrize("name", JOBS)
def test_a_read_only_output(name: str, jobs: Runner, read_only: Path) -> None:
    """It is one clear error, and what is to blame is named."""
    done = jobs.run(name, read_only, 2)
    # A store is a node's own, so that --best-effort goes on without it.
    assert done.returncode == (1 if name == "localize" else 2), done.stderr
    assert "Read-only file system" in done.stderr
    assert str(read_only) in done.stderr
    assert done.stderr.count("distcache: ") == 1


@pytest.mark.few(3)
@pytest.mark.parametrize("name", JOBS)
def test_two_at_once(name: str, jobs: Runner, shared: Path) -> None:
    """Two jobs with one output: one makes it, the other waits and finds it."""
    words = [DISTCACHE, *map(str, JOBS[name].words(jobs.inputs, shared))]
    both = [
        subprocess.Popen(
            words, env=clean_environment(), stderr=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(2)
    ]
    errors = [process.communicate(timeout=LIMIT)[1].decode() for process in both]
    assert [process.returncode for process in both] == [0, 0], errors
    assert published(name, shared) == jobs.expected(name)
    assert hidden(shared) == []
