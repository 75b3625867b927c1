"""Slurm's own commands, and what they say of a job."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from distcache.errors import DistcacheError
from distcache.programs import run_program

__all__ = ["JobState", "call", "look_at_job", "parse_sacct", "parse_scontrol"]

LIMIT: Final = 60.0  # seconds for an answer
# Of jobs that will not run again.
ENDED: Final = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "TIMEOUT",
)


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
        """Whether it will not run again."""
        return self.state in ENDED


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
    done = run_program(words, LIMIT, environment)
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
        raise DistcacheError(f"{' '.join(words[:2])}: {said}")
    return done.stdout


def look_at_job(job: str) -> JobState:
    """Ask the controller about a job, and the accounting if it has forgotten the job already.

    Raises
    ------
    DistcacheError
        If neither knows.
    """
    try:
        return parse_scontrol(call(["scontrol", "show", "job", "--oneliner", job]))
    except DistcacheError as error:
        try:
            fields = "--format=State,ExitCode"
            return parse_sacct(call(["sacct", "-nXP", "-j", job, fields]))
        except DistcacheError:
            raise error from None


def parse_scontrol(text: str) -> JobState:
    """Read ``scontrol show job --oneliner``."""

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
