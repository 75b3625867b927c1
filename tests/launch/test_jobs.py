"""What jobs are given, and what is made of what they leave behind."""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from distcache.errors import ConfigError, CorpusError, DistcacheError
from distcache.launch.follow import Tail, failure, follow
from distcache.launch.prejob import exchangeable, job_directory, make_private
from distcache.launch.slurm import parse_sinfo


class Watcher:
    """What submitit knows of a job: the states that it has one after another."""

    def __init__(self, states: Iterable[str]) -> None:
        self.states = iter(states)
        self.state = "UNKNOWN"

    def clear(self) -> None:
        """Forget what was asked before."""
        self.state = "UNKNOWN"

    def get_state(self, job: str, mode: str) -> str:
        """Return the next state."""
        self.state = next(self.states)
        return self.state


class Job:
    """A job of submitit's."""

    job_id = "8"

    def __init__(self, *states: str) -> None:
        self.watcher = Watcher(states)


@pytest.fixture
def _at_once(limit: Callable[..., None]) -> None:
    limit("distcache.launch.follow", LOG_POLL=0.0)
    limit("distcache.launch.follow", ASK_EVERY=0.0)


@pytest.fixture
def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let `squeue` say why a job waits."""
    program = tmp_path / "bin" / "squeue"
    program.parent.mkdir()
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    def say(reason: str) -> None:
        program.write_text(f"#!/bin/sh\necho {reason}\n")
        program.chmod(0o755)

    return say


def test_the_directory_of_a_job_is_private(tmp_path: Path) -> None:
    """Nobody else can put into it what its tasks load."""
    make_private(tmp_path / "new" / "logs")
    assert stat.S_IMODE((tmp_path / "new" / "logs").stat().st_mode) == 0o700
    make_private(tmp_path / "new" / "logs")
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "new" / "logs")
    (tmp_path / "file").write_text("")
    for name in ("open", "link", "file"):
        with pytest.raises(ConfigError, match="only you can write to"):
            make_private(tmp_path / name)


def leave(directory: Path, text: str) -> Path:
    """Return the log of job 8."""
    log = directory / "8.log"
    log.write_text(text)
    return log


def test_a_failure_is_told_in_the_words_of_a_rank(tmp_path: Path) -> None:
    """Each once, of the last start only, with the exit code of who ended by itself."""
    log = leave(
        tmp_path,
        "==== started on a\ndistcache: interrupted by SIGUSR2; run again to resume\n"
        "==== started on a\n[ 0.0 s] planning\ndistcache: a.idx: is odd\n"
        "srun: error: node2: task 0: Killed\ndistcache: a.idx: is odd\n"
        "srun: error: node2: task 1: Exited with exit code 3\nsrun: error: node1: Terminated\n",
    )
    error = failure("8", log, "FAILED")
    assert isinstance(error, CorpusError)
    assert error.problems == ("a.idx: is odd", f"pre-job 8: FAILED; its log: {log}")


def test_a_failure_that_no_rank_foresaw(tmp_path: Path) -> None:
    """It is told in the last words of a rank, and in Slurm's."""
    log = leave(
        tmp_path,
        "==== started on a\nslurmstepd-node1: error: STEP 8.0 CANCELLED DUE TO NODE FAILURE\n"
        "[ 0.0 s] planning\nTraceback\n  line\nRuntimeError: odd\n",
    )
    error = failure("8", log, "NODE_FAIL")
    assert error.exit_code == 1
    assert "RuntimeError: odd" in error.problems
    assert any("NODE FAILURE" in problem for problem in error.problems)
    assert "NODE_FAIL" in error.problems[-1]


def test_ranks_that_end_alike(tmp_path: Path) -> None:
    """What each writes last is told, though their lines mix, and only the first ones differ."""
    stacks = [
        (f"Init(argv=(nil), {rank:x})", "MPIR_init(141):", "odd version") for rank in range(9)
    ]
    mixed = [line for lines in zip(*stacks, strict=True) for line in lines]
    for lines in (mixed, [*itertools.chain(*stacks), *(f"Init({rank})" for rank in range(4))]):
        log = leave(tmp_path, "==== started on a\n" + "".join(f"{line}\n" for line in lines))
        assert "odd version" in failure("8", log, "FAILED").problems


def test_a_failure_without_any_log(tmp_path: Path) -> None:
    """A failure without any log says the job's state."""
    assert failure("8", tmp_path / "8.log", "CANCELLED").problems == (
        f"pre-job 8: CANCELLED; its log: {tmp_path}/8.log",
    )


def test_odd_logs(tmp_path: Path) -> None:
    """Neither hide why a job failed, nor reach the terminal as they are, however long."""
    log = leave(tmp_path, "x" * (3 << 20) + "\n==== started on a\ndistcache: \x1b[2J gone\n")
    assert failure("8", log, "FAILED").problems[0] == "?[2J gone"
    assert Tail(log).lines()[-1] == "distcache: ?[2J gone"
    for name in ("fifo", "link", "directory"):
        odd = tmp_path / name
        {"fifo": os.mkfifo, "link": lambda path: path.symlink_to("nowhere")}.get(name, os.mkdir)(
            odd
        )
        assert len(failure("8", odd, "FAILED").problems) == 1


@pytest.mark.usefixtures("_at_once")
def test_following(tmp_path: Path) -> None:
    """It tells each state once, and each whole line of the log."""
    log = leave(tmp_path, "first\nhalf")

    def states() -> Iterator[str]:
        yield from ("UNKNOWN", "RUNNING")
        with open(log, "a") as stream:
            stream.write(" a line\nlast\n")
        yield "COMPLETED"

    job, told = Job(), list[str]()
    job.watcher.states = states()
    assert follow(job, log, told.append) == "COMPLETED"  # type: ignore[arg-type]
    assert told == [
        "pre-job 8: unknown",
        "first",
        "pre-job 8: running",
        "pre-job 8: completed",
        "half a line",
        "last",
    ]


@pytest.mark.usefixtures("_at_once")
def test_a_job_that_slurm_starts_again(tmp_path: Path) -> None:
    """A node that fails does not end it, unless it stays so."""
    again = Job("RUNNING", "SUSPENDED", "RUNNING", "NODE_FAIL", "PENDING", "RUNNING", "COMPLETED")
    assert follow(again, tmp_path / "log", lambda _: None) == "COMPLETED"  # type: ignore[arg-type]


@pytest.mark.usefixtures("_at_once")
@pytest.mark.parametrize("state", ["NODE_FAIL", "PREEMPTED"])
def test_a_job_that_slurm_does_not_start_again(
    state: str, tmp_path: Path, scale_time: Callable[[float], None]
) -> None:
    """It has ended when it has stayed so for a while."""
    scale_time(0.1 / 15)
    job = Job()
    job.watcher.states = itertools.repeat(state)
    assert follow(job, tmp_path / "log", lambda _: None) == state  # type: ignore[arg-type]


def test_a_directory_that_a_colleague_could_exchange(tmp_path: Path) -> None:
    """In a team's directory the job's files go to the home; in one that is sticky they may stay."""
    team = tmp_path / "team"
    team.mkdir()
    team.chmod(0o770)
    assert exchangeable(team / "c.jobs") == team
    with pytest.raises(ConfigError, match=rf"{team} is not a directory that only you"):
        make_private(team / "c.jobs")
    found = job_directory(team / "c.h5")
    assert found.is_relative_to(Path.home())
    assert found != job_directory(team / "d.h5")
    assert found.name.startswith("c-")
    team.chmod(0o1777)
    assert job_directory(team / "c.h5") == team / "c.jobs"
    (tmp_path / "way").symlink_to(team)
    assert job_directory(tmp_path / "way" / "c.h5") == team / "c.jobs"
    team.chmod(0o770)
    assert job_directory(tmp_path / "way" / "c.h5").is_relative_to(Path.home())


def test_a_link_that_a_colleague_could_exchange(tmp_path: Path) -> None:
    """It is followed once: what is looked at is what is used."""
    team, mine = tmp_path / "team", tmp_path / "mine"
    team.mkdir()
    team.chmod(0o770)
    mine.mkdir(mode=0o700)
    (team / "second").symlink_to(mine)
    (tmp_path / "first").symlink_to(team / "second")
    assert job_directory(tmp_path / "first" / "c.h5") == mine / "c.jobs"


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "reason",
    [
        "PartitionConfig",
        "PartitionTimeLimit",
        "BadConstraints",
        "AssocMaxCpuPerJobLimit",
        "QOSMaxWallDurationPerJobLimit",
    ],
)
def test_a_job_that_can_never_start_is_an_error(
    reason: str, answer: Callable[[str], None], tmp_path: Path
) -> None:
    """With what to change; one that waits for its turn is waited for."""
    answer(reason)
    with pytest.raises(ConfigError, match=f"can never start .{reason}.*change --nodes"):
        follow(Job("PENDING"), tmp_path / "log", lambda _: None)  # type: ignore[arg-type]


@pytest.mark.usefixtures("_at_once")
def test_a_job_that_waits_for_its_turn(answer: Callable[[str], None], tmp_path: Path) -> None:
    """It is waited for, and said is for what."""
    answer("Resources")
    told: list[str] = []
    job = Job("PENDING", "PENDING", "COMPLETED")
    assert follow(job, tmp_path / "log", told.append) == "COMPLETED"  # type: ignore[arg-type]
    assert told == ["pre-job 8: pending Resources", "pre-job 8: completed"]


@pytest.mark.parametrize(
    ("said", "partition", "expected"),
    [
        ("cpu* 4\ngpu 64\n", None, 4),
        ("gpu 64\n", "gpu", 8),
        ("gpu 16+\ngpu 2\n", "gpu", 2),
        ("nothing\n", None, 8),
    ],
)
def test_ranks_fit_the_nodes(said: str, partition: str | None, expected: int) -> None:
    """Of the partition that is asked for, or the default one; eight where Slurm does not say."""
    assert parse_sinfo(said, partition, 1, 8) == expected


@pytest.mark.usefixtures("_at_once")
def test_slurm_that_does_not_answer(tmp_path: Path, scale_time: Callable[[float], None]) -> None:
    """Slurm that does not answer is waited for, but not indefinitely."""
    scale_time(0.1 / 600)
    job = Job()
    job.watcher.states = itertools.repeat("UNKNOWN")
    with pytest.raises(DistcacheError, match="sacct has said nothing"):
        follow(job, tmp_path / "log", lambda _: None)  # type: ignore[arg-type]


def test_parents_that_a_group_could_write_to(tmp_path: Path) -> None:
    """They are not made, whatever the umask; a job's directory is this user's alone."""
    before = os.umask(0o002)
    try:
        make_private(tmp_path / "a" / "b" / "jobs")
        make_private(tmp_path / "a" / "b" / "jobs")
    finally:
        os.umask(before)
    assert (tmp_path / "a" / "b" / "jobs").stat().st_mode & 0o777 == 0o700
