"""What jobs are given, and what is made of what they leave behind."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from distcache.errors import (
    BuildInterrupted,
    ConfigError,
    CorpusError,
    DistcacheError,
    NotReady,
)
from distcache.launch import follow as following
from distcache.launch import slurm
from distcache.launch.follow import Tail, failure, follow
from distcache.launch.prejob import (
    JobFiles,
    JobOptions,
    exchangeable,
    job_directory,
    make_executor,
    make_private,
    sbatch_parameters,
    submit_prejob,
)
from distcache.launch.slurm import JobState, parse_sinfo
from distcache.launch.submit import require_script

OPTIONS = JobOptions(
    nodes=3,
    tasks_per_node=2,
    cpus_per_task=1,
    minutes=10,
    memory="2G",
    mpi="pmi2",
    partition="cpu",
)
SCRIPT = """\
#!/bin/bash

# Parameters
#SBATCH --cpus-per-task=1
#SBATCH --error={logs}/%j_0_log.err
#SBATCH --job-name=distcache
#SBATCH --mem=2G
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=2
#SBATCH --open-mode=append
#SBATCH --output={logs}/%j_0_log.out
#SBATCH --partition=cpu
#SBATCH --requeue
#SBATCH --signal=USR2@90
#SBATCH --time=10

# setup
trap : USR1 USR2  # those of --signal end the ranks, which requeue this job below

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output {logs}/%j_%t_log.out --error {logs}/%j_%t_log.err --mpi=pmi2 \
--kill-on-bad-exit=1 --cpus-per-task=1 COMMAND


# teardown
code=$?
[ "$code" -eq 0 ] && [ ! -e '/shared/a b.h5' ] && code=5
if [ "$code" -eq 8 ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt 3 ]; then
    echo "distcache was interrupted; requeueing job $SLURM_JOB_ID, which resumes" >&2
    scontrol requeue "$SLURM_JOB_ID" && sleep 60
fi
exit "$code"\
"""


@pytest.fixture
def slurm_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command of the name that submitit looks for; it is not started."""
    path = tmp_path / "bin" / "srun"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\nexit 1\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(path.parent))


@pytest.mark.usefixtures("slurm_here")
def test_the_batch_script(tmp_path: Path) -> None:
    """Is this, to the letter: what is asked for, the ranks, how an interrupted build continues."""
    executor = make_executor(tmp_path / "logs", Path("/shared/a b.h5"), OPTIONS)
    text = executor._make_submission_file_text("COMMAND", "uid")
    assert text == SCRIPT.format(logs=tmp_path / "logs")


def test_without_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing Slurm is one clear error."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="srun: not found"):
        make_executor(tmp_path, tmp_path / "c.h5", OPTIONS)


@pytest.mark.parametrize("name", ["a%t", "q%j", "back\\slash", "line\nbreak", "\udcff"])
def test_paths_that_slurm_would_read_otherwise(tmp_path: Path, name: str) -> None:
    """They are refused before there is anything in them."""
    with pytest.raises(ConfigError, match="choose another --name"):
        submit_prejob(tmp_path / name, [], tmp_path / "c.h5", OPTIONS)
    assert not list(tmp_path.iterdir())


def test_options_that_would_be_lines_of_the_script(tmp_path: Path) -> None:
    """Options that would be lines of the script are refused."""
    odd = msgspec.structs.replace(OPTIONS, partition="cpu\ntouch /tmp/x", memory=" ")
    with pytest.raises(ConfigError) as error:
        submit_prejob(tmp_path / "logs", [], tmp_path / "c.h5", odd)
    assert len(error.value.problems) == 2


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


def leave(directory: Path, **logs: str) -> JobFiles:
    """Return the files of job 8, with the standard error of its ranks."""
    for rank, text in logs.items():
        (directory / f"8_{rank.removeprefix('rank')}_log.err").write_text(text)
    return JobFiles(directory, "8")


def test_a_failure_is_told_in_the_words_of_a_rank(tmp_path: Path) -> None:
    """Each once, of the last start only, with the exit code of who ended by itself."""
    early = "starting rank 1\ndistcache: interrupted by SIGUSR2; run again to resume\n"
    files = leave(
        tmp_path,
        rank0="starting rank 0\n[ 0.0 s] planning\ndistcache: a.idx: is odd\n"
        "srun: error: node2: task 1: Exited with exit code 3\nsrun: error: node1: Terminated\n",
        rank1=f"{early}starting rank 1\ndistcache: a.idx: is odd\n",
    )
    error = failure(files, JobState("FAILED", 143, "NonZeroExitCode"))
    assert isinstance(error, CorpusError)
    assert error.problems[0] == "a.idx: is odd"
    assert error.problems[1].startswith("pre-job 8: FAILED (exit code 143); its logs: ")
    assert len(error.problems) == 2


def test_a_failure_that_no_rank_foresaw(tmp_path: Path) -> None:
    """It is told in the last words of a rank, and in Slurm's."""
    files = leave(
        tmp_path,
        rank0="starting rank 0\nslurmstepd-node1: error: STEP 8.0 CANCELLED DUE TO NODE FAILURE\n",
        rank1="starting rank 1\n[ 0.0 s] planning\nTraceback\n  line\nRuntimeError: odd\n",
    )
    error = failure(files, JobState("NODE_FAIL", 0, ""))
    assert error.exit_code == 1
    assert "RuntimeError: odd" in error.problems
    assert any("NODE FAILURE" in problem for problem in error.problems)
    assert "NODE_FAIL" in error.problems[-1]


def test_a_failure_without_any_log(tmp_path: Path) -> None:
    """A failure without any log says what Slurm says."""
    error = failure(leave(tmp_path), JobState("CANCELLED", 0, "DependencyNeverSatisfied"))
    assert len(error.problems) == 1
    assert "CANCELLED DependencyNeverSatisfied" in error.problems[0]


def test_odd_logs(tmp_path: Path) -> None:
    """Neither hide why a job failed, nor reach the terminal as they are, however long."""
    files = leave(tmp_path, rank0="x" * (3 << 20) + "\nstarting\ndistcache: \x1b[2J gone\n")
    (tmp_path / "8_x_log.err").write_text("distcache: of no rank\n")
    (tmp_path / "8_1_log.err").mkdir()
    (tmp_path / "8_2_log.err").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "8_3_log.err")
    assert failure(files, JobState("FAILED", 1)).problems[0] == "?[2J gone"
    assert Tail(files.first_log).lines()[-1] == "distcache: ?[2J gone"


def test_following(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It tells each state once, and each whole line of rank 0's log."""
    monkeypatch.setattr(following, "LOG_POLL", 0.0)
    monkeypatch.setattr(following, "ASK_EVERY", 0.0)
    files = leave(tmp_path, rank0="first\nhalf")

    def states() -> Iterator[JobState]:
        yield JobState("PENDING", reason="Resources")
        yield JobState("RUNNING")
        with open(files.first_log, "a") as log:
            log.write(" a line\nlast\n")
        yield JobState("COMPLETED")

    coming = states()
    told: list[str] = []
    assert follow(files, told.append, lambda _: next(coming)).state == "COMPLETED"
    assert told == [
        "pre-job 8: pending Resources",
        "first",
        "pre-job 8: running",
        "pre-job 8: completed",
        "half a line",
        "last",
    ]


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


@pytest.mark.usefixtures("slurm_here")
def test_options_of_sbatch_and_srun(tmp_path: Path) -> None:
    """Stand in the script as they were given; what distcache relies on cannot be overruled."""
    assert sbatch_parameters(["--gres=gpu:1", "--exclusive", "--comment=a b"]) == {
        "gres": "gpu:1",
        "exclusive": None,
        "comment": "a b",
    }
    options = msgspec.structs.replace(OPTIONS, cpus_per_task=3, srun=("--container-image=a.sqsh",))
    script = make_executor(tmp_path, tmp_path / "c.h5", options)._make_submission_file_text("X", "")
    assert "--cpus-per-task=3 --container-image=a.sqsh X" in script
    with pytest.raises(ConfigError) as caught:
        sbatch_parameters(["gres=1", "--", "--output=x", "--wrap=y", "--x=\n#SBATCH -w a"])
    assert len(caught.value.problems) == 5


@pytest.mark.usefixtures("slurm_here")
@pytest.mark.parametrize(
    ("given", "gone", "there"),
    [
        (["--mem-per-cpu=4G"], "--mem=2G", "#SBATCH --mem-per-cpu=4G"),
        (["--mem-per-gpu=4G"], "--mem=2G", "#SBATCH --mem-per-gpu=4G"),
        (["--mem="], "--mem", "#SBATCH --nodes=3"),
        (["--ntasks=4"], "--ntasks-per-node", "#SBATCH --ntasks=4"),
        (["--no-requeue"], "--requeue", "#SBATCH --no-requeue"),
        (["--signal=USR1@30"], "--signal=USR2@90", "#SBATCH --signal=USR1@30"),
        (["--signal=", "--open-mode="], "--signal", "#SBATCH --time=10"),
        (["--time=", "--time-min=5"], "--time=10", "#SBATCH --time-min=5"),
        (["--nodes=1-2", "--exclusive"], "--nodes=3", "#SBATCH --exclusive"),
        (["--job-name=my job"], "--job-name=distcache", "#SBATCH --job-name='my job'"),
    ],
)
def test_an_option_takes_the_place_of_ours(
    given: list[str], gone: str, there: str, tmp_path: Path
) -> None:
    """Sites forbid one or another; each can be replaced or left out, before the script begins."""
    options = msgspec.structs.replace(OPTIONS, sbatch=tuple(given))
    script = make_executor(tmp_path, tmp_path / "c.h5", options)._make_submission_file_text("X", "")
    lines = script.splitlines()
    assert there in lines
    own = [line for line in lines if line.startswith(f"#SBATCH {gone}")]
    assert not own or own == [there]
    assert lines.index(there) < next(n for n, line in enumerate(lines) if line == "# command")


@pytest.mark.parametrize("memory", ["", "none", "default"])
@pytest.mark.usefixtures("slurm_here")
def test_memory_can_be_left_to_the_site(memory: str, tmp_path: Path) -> None:
    """Memory can be left to the site where every option of it is refused."""
    options = msgspec.structs.replace(OPTIONS, memory=memory)
    script = make_executor(tmp_path, tmp_path / "c.h5", options)._make_submission_file_text("X", "")
    assert "--mem" not in script


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
def test_a_job_that_can_never_start_is_an_error(reason: str, tmp_path: Path) -> None:
    """With what to change; one that waits for its turn is waited for."""
    with pytest.raises(ConfigError, match=f"can never start .{reason}.*change --nodes"):
        follow(JobFiles(tmp_path, "8"), lambda _: None, lambda _: JobState("PENDING", 0, reason))
    states = iter([JobState("PENDING", 0, "Resources"), JobState("COMPLETED")])
    assert follow(JobFiles(tmp_path, "8"), lambda _: None, lambda _: next(states)).ended


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


def test_slurm_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale_time: Callable[[float], None]
) -> None:
    """Slurm that does not answer is waited for, but not indefinitely."""
    monkeypatch.setattr(following, "LOG_POLL", 0.0)
    monkeypatch.setattr(following, "ASK_EVERY", 0.0)
    scale_time(0.1 / 600)

    def look(_: str) -> JobState:
        raise DistcacheError("scontrol: no answer")

    with pytest.raises(DistcacheError, match="no answer"):
        follow(JobFiles(tmp_path, "8"), lambda _: None, look)


def test_training_scripts(tmp_path: Path) -> None:
    """They are looked at before anything is submitted."""
    script = tmp_path / "train.sbatch"
    with pytest.raises(NotReady, match="no such script"):
        require_script(str(script), tmp_path / "c.h5")
    script.write_text("srun true\n")
    with pytest.raises(ConfigError, match="is no batch script"):
        require_script(str(script), tmp_path / "c.h5")
    script.write_text("#!/bin/bash\n#SBATCH --export=HOME\n")
    require_script(str(script), tmp_path / "c.h5")
    with pytest.raises(ConfigError, match="the comma"):
        require_script(str(script), tmp_path / "a,b.h5")
    script.write_text("#!/bin/bash\n\ncat <<END\n#SBATCH --export=HOME\nEND\n")
    require_script(str(script), tmp_path / "a,b.h5")  # Slurm does not read that far either


def test_parents_that_a_group_could_write_to(tmp_path: Path) -> None:
    """They are not made, whatever the umask; a job's directory is this user's alone."""
    before = os.umask(0o002)
    try:
        make_private(tmp_path / "a" / "b" / "jobs")
        make_private(tmp_path / "a" / "b" / "jobs")
    finally:
        os.umask(before)
    assert (tmp_path / "a" / "b" / "jobs").stat().st_mode & 0o777 == 0o700


def test_an_interruption_while_slurm_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends it, and does not ask the accounting instead."""

    def call(words: list[str]) -> str:
        raise BuildInterrupted("interrupted")

    monkeypatch.setattr(slurm, "call", call)
    with pytest.raises(BuildInterrupted):
        slurm.look_at_job("17")
