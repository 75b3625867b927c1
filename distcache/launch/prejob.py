"""The pre-job: what submitit is told, and what its tasks do.

submitit writes the batch script and a pickle that names `Task` and its words; Slurm's tasks load
it in a directory that only the user can write to. The task then becomes ``distcache build``, so
that signals, exit codes and messages are that command's own, and no result is ever pickled.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import msgspec

from distcache.errors import BuildInterrupted, ConfigError, DistcacheError

if TYPE_CHECKING:
    from submitit import SlurmExecutor

__all__ = [
    "START",
    "JobFiles",
    "JobOptions",
    "Task",
    "make_executor",
    "make_private",
    "submit_prejob",
]

SIGNAL_DELAY: Final = 90  # seconds before the time limit at which the build is interrupted
RESTARTS: Final = 3
START: Final = "starting "  # begins the first line of every rank, each time it starts


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the pre-job asks Slurm for.

    Attributes
    ----------
    nodes, tasks_per_node, cpus_per_task : int
        Its shape; every task is a rank.
    minutes : int or None
        Time limit; None until it has been foreseen.
    memory : str or None
        Of each node, as Slurm writes it; likewise.
    mpi : str or None
        Plugin of srun; None until it has been found out.
    partition, account, qos, constraint : str or None
        As for sbatch.
    """

    nodes: int = 1
    tasks_per_node: int = 8
    cpus_per_task: int = 1
    minutes: int | None = None
    memory: str | None = None
    mpi: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None


class Task:
    """What each task of the job does: become a rank of ``distcache build``.

    Parameters
    ----------
    words : list of str
        Of the command, without its name.
    """

    def __init__(self, words: list[str]) -> None:
        self.words = words

    def __call__(self) -> NoReturn:
        """Replace this process. What srun has set up for MPI stays."""
        sys.stderr.write(f"{START}{self._where()}\n")
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, "-m", "distcache", *self.words])  # noqa: S606

    def _where(self) -> str:
        names = ("SLURM_PROCID", "SLURM_NTASKS", "SLURMD_NODENAME", "SLURM_JOB_ID")
        rank, ranks, node, job = (os.environ.get(name, "?") for name in names)
        again = os.environ.get("SLURM_RESTART_COUNT", "0")
        return f"rank {rank} of {ranks} on {node}, job {job}, restarted {again} times"


class JobFiles(msgspec.Struct, frozen=True):
    """Where a pre-job's files are.

    Attributes
    ----------
    directory : Path
        Of this user alone.
    job : str
        Its number.
    """

    directory: Path
    job: str

    @property
    def first_log(self) -> Path:
        """What rank 0 and the batch script write to standard error."""
        return self.directory / f"{self.job}_0_log.err"

    def logs(self) -> list[Path]:
        """Return the standard error of all ranks, as far as they have started."""
        found = self.directory.glob(f"{self.job}_*_log.err")
        return sorted(found, key=lambda path: int(path.name.split("_")[1]))


def submit_prejob(directory: Path, words: list[str], options: JobOptions) -> JobFiles:
    """Submit ``distcache build`` as a job.

    Parameters
    ----------
    directory : Path
        For the job's files; made if it is not there.
    words : list of str
        Of the command, without its name.
    options : JobOptions
        What to ask for.

    Raises
    ------
    ConfigError
        If the directory is not this user's own, or there is no Slurm.
    DistcacheError
        In Slurm's words, if it refuses the job.
    """
    make_private(directory)
    executor = make_executor(directory, options)
    from submitit.core.utils import FailedJobError, FailedSubmissionError  # noqa: PLC0415

    try:
        job = executor.submit(Task(words))
    except (FailedJobError, FailedSubmissionError) as error:
        raise DistcacheError(f"sbatch: {error}") from error
    return JobFiles(directory, job.job_id)


def make_executor(directory: Path, options: JobOptions) -> SlurmExecutor:
    """Return what writes the batch script and submits it.

    Raises
    ------
    ConfigError
        If there is no submitit, or no Slurm.
    """
    try:
        from submitit import SlurmExecutor  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            f"submitting needs submitit ({error}); install distcache[slurm]"
        ) from error
    try:
        executor = SlurmExecutor(directory)
    except RuntimeError as error:
        raise ConfigError("srun: not found; run this where Slurm's commands are") from error
    assert options.minutes is not None
    executor.update_parameters(
        job_name="distcache",
        nodes=options.nodes,
        ntasks_per_node=options.tasks_per_node,
        cpus_per_task=options.cpus_per_task,
        time=options.minutes,
        mem=options.memory,
        partition=options.partition,
        account=options.account,
        qos=options.qos,
        constraint=options.constraint,
        wckey=None,  # submitit's own name, which a site may not know
        signal_delay_s=min(SIGNAL_DELAY, 15 * options.minutes),  # at most a quarter of the limit
        srun_args=[f"--mpi={options.mpi}", "--kill-on-bad-exit=1"],
        teardown=_requeue(),
        additional_parameters={"requeue": True},
    )
    return executor


def _requeue() -> list[str]:
    """Return the end of the batch script: an interrupted build goes on in the same job.

    So jobs that depend on it go on waiting. Slurm itself does the same for jobs that it preempts.
    """
    return [
        "code=$?",
        f'if [ "$code" -eq {BuildInterrupted.exit_code} ] '
        f'&& [ "${{SLURM_RESTART_COUNT:-0}}" -lt {RESTARTS} ]; then',
        '    echo "distcache was interrupted; requeueing job $SLURM_JOB_ID, which resumes" >&2',
        '    scontrol requeue "$SLURM_JOB_ID" && sleep 60',  # until that ends this script
        "fi",
        'exit "$code"',
    ]


def make_private(directory: Path) -> None:
    """Make a directory that nobody else can write to, or see that it is one.

    Raises
    ------
    ConfigError
        If it is not.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        found = os.lstat(directory)
        others = stat.S_IWGRP | stat.S_IWOTH
        sound = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
        if not sound or found.st_mode & others:
            raise ConfigError(
                f"{directory}: is not a directory that only you can write to; name another with "
                "--logs"
            ) from None
