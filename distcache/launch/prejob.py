"""The pre-job: what submitit is told, and what its tasks do.

submitit writes the batch script and a pickle that names `Task` and its words; Slurm's tasks load
it from a directory in whose place nobody else can put another. The task then becomes ``distcache
build``, so that signals, exit codes and messages are that command's own, and no result is ever
pickled.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from pathlib import Path
from typing import Final, NoReturn

import msgspec
import xxhash

from distcache.activity import Stalled, run_watched
from distcache.errors import ConfigError, DistcacheError
from distcache.launch.executor import JobOptions, hidden_variables, make_executor
from distcache.launch.slurm import without_variables
from distcache.timeouts import limits

__all__ = [
    "START",
    "JobFiles",
    "Task",
    "exchangeable",
    "job_directory",
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
        For the job's files, without links; made if it is not there.
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
        with without_variables(hidden_variables(options)):
            job = run_watched(lambda: executor.submit(Task(words)), limits().slurm, "sbatch")
    except Stalled as error:
        raise DistcacheError(
            f"sbatch: no answer for {limits().slurm:.0f} s; the job may be submitted all the same: "
            "see squeue --me"
        ) from error
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
    given = msgspec.structs.asdict(options)
    values = [(name, value) for name, value in given.items() if not isinstance(value, tuple)]
    values += [("srun", word) for word in options.srun]
    for name, value in values:
        if isinstance(value, str) and not (value.isprintable() and value.strip()):
            problems.append(f"{name} {value!r}: expected printable text")
    if problems:
        raise ConfigError(*problems)


def make_private(directory: Path) -> None:
    """Make a directory in whose place nobody else can put another, or see that it is one.

    Its path has no links: what lies where one leads could be exchanged on the way.

    What lies in it is executed by the job. So nobody but this user and root may write to it, nor to
    any directory above it, unless only its owner may rename what is there (as in ``/tmp``).

    Raises
    ------
    ConfigError
        If it is not.
    """
    _require_own(directory)
    for parent in reversed(directory.parents):
        parent.mkdir(mode=0o755, exist_ok=True)  # whatever the umask lets a group write to
    directory.mkdir(mode=0o700, exist_ok=True)
    _require_own(directory)


def _require_own(directory: Path) -> None:
    if (wrong := exchangeable(directory)) is not None:
        raise ConfigError(
            f"{directory}: {wrong} is not a directory that only you can write to, so that others "
            "could exchange what the job executes; name another directory with --logs"
        )


def exchangeable(directory: Path) -> Path | None:
    """Return what of a path without links others may exchange, or None.

    What is not there yet will be this user's.
    """
    for place in (directory, *directory.parents):
        try:
            found = os.lstat(place)
        except FileNotFoundError:
            continue
        mine = found.st_uid in (os.geteuid(), 0)
        others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        sticky = found.st_mode & stat.S_ISVTX and place != directory
        if not mine or not stat.S_ISDIR(found.st_mode) or (others and not sticky):
            return place
    return None


def job_directory(cache: Path) -> Path:
    """Return where a pre-job's files go: beside the cache, if nobody could exchange them there."""
    beside = Path(os.path.realpath(cache.with_suffix(".jobs")))
    if exchangeable(beside) is None:
        return beside
    digest = xxhash.xxh3_64_hexdigest(os.fsencode(cache))
    return Path.home() / ".distcache" / "jobs" / f"{cache.stem}-{digest}"
