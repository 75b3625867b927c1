"""Follow a pre-job: its log as it is written, and why it failed, in the words of its ranks."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from distcache.errors import BuildInterrupted, ConfigError, DistcacheError, error_from_exit_code
from distcache.files import open_sized
from distcache.launch.prejob import START, JobFiles
from distcache.launch.slurm import JobState, look_at_job
from distcache.timeouts import limits

__all__ = ["failure", "follow"]

POLL: Final = 1.0  # seconds between looks at the log
ASK_EVERY: Final = 5.0  # seconds between questions to Slurm
TELL_EVERY: Final = 60.0  # seconds between messages about a job that waits
OUR_PREFIX: Final = "distcache: "
SLURM_PREFIXES: Final = ("srun: error:", "slurmstepd: error:", "slurmstepd-")
MOST_LINES: Final = 20
LAST_WORDS: Final = 5  # lines
LONGEST: Final = 1 << 20  # bytes of a log that are read at a time


def _printable(line: str) -> str:
    """Return a line without what would change the terminal."""
    return "".join(sign if sign.isprintable() or sign == "\t" else "?" for sign in line)


def _read(path: Path, begin: int) -> tuple[bytes, int]:
    """Return what a file has from a byte on, or the last of it, and where that begins."""
    try:
        descriptor, size = open_sized(path)
    except OSError:
        return b"", begin
    try:
        begin = max(begin, size - LONGEST)
        return os.pread(descriptor, LONGEST, begin), begin
    finally:
        os.close(descriptor)


class Tail:
    """Reads what is appended to a file, whole lines at a time.

    Parameters
    ----------
    path : Path
        A file that may not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def lines(self) -> list[str]:
        """Return the lines that have been completed since the last call; the last of very many."""
        content, begin = _read(self._path, self._offset)
        whole = content[: content.rfind(b"\n") + 1]
        self._offset = begin + len(whole)
        return [_printable(line) for line in whole.decode("utf-8", "replace").splitlines()]


def follow(
    files: JobFiles,
    tell: Callable[[str], None],
    look: Callable[[str], JobState] = look_at_job,
) -> JobState:
    """Wait until a job has ended, telling what rank 0 writes.

    It waits as long as the job does, and says every minute what the job waits for.

    Raises
    ------
    DistcacheError
        If Slurm does not answer for ten minutes.
    """
    tail = Tail(files.first_log)
    state, told = JobState("UNKNOWN"), ""
    answered = changed = time.monotonic()
    asked = told_at = -TELL_EVERY
    while not state.ended or (state.may_be_requeued and asked - changed < limits().requeue):
        now = time.monotonic()
        if now - asked >= ASK_EVERY:
            before, state = state, _ask(files.job, look, state, now - answered)
            asked = now
            answered = now if state is not before else answered
            changed = changed if state.state == before.state else now
        words = f"pre-job {files.job}: {state.state.lower()} {state.reason}".rstrip()
        if words != told or (state.state == "PENDING" and now - told_at >= TELL_EVERY):
            tell(words)
            told, told_at = words, now
        for line in tail.lines():
            tell(line)
        time.sleep(POLL)
    return state


def _ask(job: str, look: Callable[[str], JobState], known: JobState, silent: float) -> JobState:
    """Ask Slurm about a job; what was known before if it does not answer, but not for ever."""
    try:
        return look(job)
    except (BuildInterrupted, ConfigError):
        raise
    except DistcacheError:
        if silent > limits().slurm_silence:
            raise
        return known


def failure(files: JobFiles, state: JobState) -> DistcacheError:
    """Return the error that says why a job has failed: what its ranks said, or else what Slurm did.

    Parameters
    ----------
    files : JobFiles
        Of a job that has ended.
    state : JobState
        How it ended.
    """
    logs = [_last_start(log) for log in files.logs()]
    lines = dict.fromkeys(line for log in logs for line in log)  # in order, each once
    ours = [line.removeprefix(OUR_PREFIX) for line in lines if line.startswith(OUR_PREFIX)]
    slurms = [line for line in lines if line.startswith(SLURM_PREFIXES)]
    said = (ours or [*_last_words(logs), *slurms])[-MOST_LINES:]
    detail = state.reason if state.reason not in ("", "NonZeroExitCode") else ""
    how = f"{state.state} {detail}".strip() + (
        f" (exit code {state.exit_code})" if state.exit_code else ""
    )
    summary = f"pre-job {files.job}: {how}; its logs: {files.directory}/{files.job}_*"
    return error_from_exit_code(_exit_code(state, slurms), *said, summary)


def _last_words(logs: Iterable[list[str]]) -> list[str]:
    """Return the end of what a rank wrote that did not foresee its end."""
    known = (OUR_PREFIX, START, *SLURM_PREFIXES, "srun:", "[")  # the last is of phases
    others = ([line for line in log if not line.startswith(known)] for log in logs)
    return next((found[-LAST_WORDS:] for found in others if found), [])


def _exit_code(state: JobState, lines: Iterable[str]) -> int:
    """Return the exit code of a rank that ended by itself: srun's may be that of a killed one."""
    found = (re.search(r"Exited with exit code (\d+)", line) for line in lines)
    codes = [state.exit_code, *(int(match.group(1)) for match in found if match)]
    known = {kind.exit_code for kind in DistcacheError.__subclasses__()} - {1}
    return next((code for code in codes if code in known), DistcacheError.exit_code)


def _last_start(log: Path) -> list[str]:
    """Return what a rank has written since the job was last started."""
    lines = [_printable(line) for line in _read(log, 0)[0].decode("utf-8", "replace").splitlines()]
    starts = [number for number, line in enumerate(lines) if line.startswith(START)]
    return lines[starts[-1] :] if starts else lines
