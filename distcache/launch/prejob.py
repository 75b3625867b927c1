"""The pre-job: what submitit is told, and what its tasks do.

submitit writes the batch script and a pickle that names `Task` and its words; Slurm's tasks load
it in a directory that only the user can write to. The task then becomes ``distcache build``, so
that signals, exit codes and messages are that command's own, and no result is ever pickled.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from distcache.errors import ConfigError, DistcacheError
from distcache.launch.executor import JobOptions, make_executor

__all__ = [
    "START",
    "JobFiles",
    "Task",
    "make_private",
    "submit_prejob",
]

START: Final = "starting "  # begins the first line of every rank, each time it starts


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
        # -P: nothing is imported from the directory that the job was submitted in.
        os.execv(sys.executable, [sys.executable, "-P", "-m", "distcache", *self.words])  # noqa: S606

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
        named = re.compile(rf"{self.job}_(\d+)_log\.err")
        found = {path: named.fullmatch(path.name) for path in self.directory.iterdir()}
        ranks = {path: int(match.group(1)) for path, match in found.items() if match}
        return sorted(ranks, key=ranks.__getitem__)


def submit_prejob(directory: Path, words: list[str], cache: Path, options: JobOptions) -> JobFiles:
    """Submit ``distcache build`` as a job.

    Parameters
    ----------
    directory : Path
        For the job's files; made if it is not there.
    words : list of str
        Of the command, without its name.
    cache : Path
        What there is when it has succeeded.
    options : JobOptions
        What to ask for.

    Raises
    ------
    ConfigError
        If the directory is not this user's own, if Slurm would read its path or an option
        otherwise than it stands, if there is no submitit, or no Slurm.
    DistcacheError
        In Slurm's words, if it refuses the job.
    """
    _require_plain(directory, options)
    make_private(directory)
    executor = make_executor(directory, cache, options)
    from submitit.core.utils import FailedJobError, FailedSubmissionError  # noqa: PLC0415

    try:
        job = executor.submit(Task(words))
    except (FailedJobError, FailedSubmissionError) as error:
        raise DistcacheError(f"sbatch: {error}") from error
    return JobFiles(directory, job.job_id)


def _require_plain(directory: Path, options: JobOptions) -> None:
    """Refuse what Slurm or the batch script would read otherwise than it stands.

    Raises
    ------
    ConfigError
        With all of it.
    """
    problems = []
    text = str(directory)
    if not text.isprintable() or any(sign in text for sign in "%\\"):
        problems.append(
            f"{text!r}: Slurm reads % and \\ in the paths of logs as something else, and no signs "
            "that cannot be printed; choose another --name, or a directory with --logs"
        )
    for name, value in msgspec.structs.asdict(options).items():
        if isinstance(value, str) and not (value.isprintable() and value.strip()):
            problems.append(f"{name} {value!r}: expected printable text")
    if problems:
        raise ConfigError(*problems)


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
