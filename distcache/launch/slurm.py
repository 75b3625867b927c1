"""Slurm's own commands, and what they say of a job."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from distcache.errors import BuildInterrupted, DistcacheError
from distcache.programs import run_program
from distcache.timeouts import limits

__all__ = [
    "JobState",
    "call",
    "job_number",
    "look_at_job",
    "parse_sacct",
    "parse_scontrol",
    "submit_script",
    "without_variables",
]

# Of jobs that run or will run; all others have ended.
LIVE: Final = (
    "COMPLETING",
    "CONFIGURING",
    "PENDING",
    "REQUEUED",
    "REQUEUE_FED",
    "REQUEUE_HOLD",
    "RESIZING",
    "RESV_DEL_HOLD",
    "RUNNING",
    "SIGNALING",
    "SPECIAL_EXIT",
    "STAGE_OUT",
    "STOPPED",
    "SUSPENDED",
    "UNKNOWN",
)
# What Slurm requeues is in one of these for a moment.
MAY_BE_REQUEUED: Final = ("BOOT_FAIL", "NODE_FAIL", "PREEMPTED")
# Those that are of the job in which a command runs, and not of the one that it submits.
OF_THIS_JOB: Final = re.compile(r"SLURM_(?!CONF$|CLUSTERS$)\w*")


class JobState(msgspec.Struct, frozen=True):
    """What Slurm says of a job.

    Attributes
    ----------
    state : str
        As in squeue and sacct, without who cancelled it.
    exit_code : int
        Of its script, once that has ended.
    reason : str
        Why it waits, or why it ended.
    restarts : int
        How often it has been requeued.
    """

    state: str
    exit_code: int = 0
    reason: str = ""
    restarts: int = 0

    @property
    def ended(self) -> bool:
        """Whether it does not run, and will not, unless it is requeued."""
        return self.state not in LIVE

    @property
    def may_be_requeued(self) -> bool:
        """Whether Slurm itself may start it again."""
        return self.state in MAY_BE_REQUEUED


def call(words: Sequence[str], environment: Mapping[str, str] = {}) -> str:
    """Run one of Slurm's commands, and return what it writes.

    Parameters
    ----------
    words : sequence of str
        The command.
    environment : mapping
        Variables to set beside those of this process.

    Raises
    ------
    ConfigError
        If there is no such command.
    DistcacheError
        With its own words, if it fails, or does not answer in time.
    """
    done = run_program(words, limits().slurm, environment)
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
        raise DistcacheError(f"{' '.join(words[:2])}: {said}")
    return done.stdout


@contextlib.contextmanager
def without_variables(names: Iterable[str] = ()) -> Iterator[None]:
    """Take the variables of the surrounding job out of the environment, and some more, for a while.

    sbatch would take them for options of the job that it submits.
    """
    hidden = {name for name in os.environ if OF_THIS_JOB.fullmatch(name)}.union(names)
    kept = {name: os.environ.pop(name) for name in hidden if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)


def submit_script(words: Sequence[str], environment: Mapping[str, str]) -> str:
    """Submit a batch script by sbatch, and return the job's number.

    Parameters
    ----------
    words : sequence of str
        Of sbatch, without its name.
    environment : mapping
        Variables to set beside those of this process.

    Raises
    ------
    DistcacheError
        In Slurm's words, if it refuses the script.
    """
    with without_variables():
        return job_number(call(["sbatch", "--parsable", *words], environment))


def job_number(said: str) -> str:
    """Read what ``sbatch --parsable`` writes: a number, maybe with the name of a cluster.

    Raises
    ------
    DistcacheError
        If it is something else.
    """
    found = re.fullmatch(r"(\d+)(;.*)?", said.strip().rpartition("\n")[2])
    if found is None:
        raise DistcacheError(f"sbatch: says {said.strip()!r} instead of the number of a job")
    return found.group(1)


def look_at_job(job: str) -> JobState:
    """Ask the controller about a job, and the accounting if it has forgotten the job already.

    Raises
    ------
    DistcacheError
        If neither knows.
    """
    try:
        return parse_scontrol(call(["scontrol", "show", "job", "--oneliner", job]))
    except BuildInterrupted:
        raise
    except DistcacheError as error:
        try:
            fields = "--format=State,ExitCode"
            return parse_sacct(call(["sacct", "-nXP", "-j", job, fields]))
        except BuildInterrupted:
            raise
        except DistcacheError:
            raise error from None


def parse_scontrol(text: str) -> JobState:
    """Read ``scontrol show job --oneliner``."""
    text = re.sub(r"\bJobName=.*? (?=UserId=)", "", text)  # which may be anything

    def field(name: str) -> str:
        found = re.search(rf"\b{name}=(\S*)", text)
        return found.group(1) if found else ""

    if not field("JobState"):
        raise DistcacheError("scontrol: says nothing of the job's state")
    return JobState(
        field("JobState"),
        _number(field("ExitCode").partition(":")[0]),
        "" if field("Reason") == "None" else field("Reason"),
        _number(field("Restarts")),
    )


def parse_sacct(text: str) -> JobState:
    """Read one line of ``sacct -nXP --format=State,ExitCode``; the last, if a job was requeued."""
    state, _, code = text.strip().rpartition("\n")[2].partition("|")
    if not state:
        raise DistcacheError("sacct: does not know the job")
    return JobState(state.split()[0], _number(code.partition(":")[0]))


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
