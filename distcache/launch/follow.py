"""Follow a pre-job: print its log, and report why it has failed."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from distcache.errors import BuildInterrupted, ConfigError, DistcacheError, error_from_exit_code
from distcache.launch.prejob import START, JobFiles
from distcache.launch.slurm import JobState, look_at_job
from distcache.storage.files import closing_fd, open_sized
from distcache.storage.timeouts import limits

LOG_POLL: Final = 1.0  # seconds between two reads of the log
ASK_EVERY: Final = 5.0  # seconds between two queries of Slurm
TELL_EVERY: Final = 60.0  # seconds between two messages about a waiting job
CLOCK: Final = re.compile(r"\[ *[\d.]+ s\] ")  # of our lines; the follower has its own
OUR_PREFIX: Final = "distcache: "
SLURM_PREFIXES: Final = ("srun: error:", "slurmstepd: error:", "slurmstepd-")
MOST_LINES: Final = 20
LAST_WORDS: Final = 5  # lines
MAX_READ_BYTES: Final = 1 << 20  # bytes of one read of a log


# Reasons of a pending job that do not pass by waiting (Slurm, slurm_reason_string).
NEVER: Final = re.compile(
    r"PartitionConfig|PartitionNodeLimit|PartitionTimeLimit|PartitionInactive|BadConstraints|"
    r"AccountNotAllowed|QOSNotAllowed|InvalidAccount|InvalidQOS|AssocMax\w*PerJob\w*|"
    r"AssocMaxWallDurationPerJobLimit|QOSMax\w*PerJob\w*|QOSMaxWallDurationPerJobLimit|"
    r"QOSTimeLimit|AssociationJobLimit|AssociationTimeLimit|AssociationResourceLimit|"
    r"QOSJobLimit|QOSResourceLimit|Assoc\w*MinCpuLimit|QOSMin\w*"
)


class Tail:
    """Reads the lines that are appended to a file, which need not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def lines(self) -> list[str]:
        """Return the lines completed since the last call; only the last `MAX_READ_BYTES` bytes."""
        content, begin = _read(self._path, self._offset)
        whole = content[: content.rfind(b"\n") + 1]
        self._offset = begin + len(whole)
        return _lines(whole)


def _read(path: Path, begin: int) -> tuple[bytes, int]:
    """Return the content of a file from an offset on, or its end, and where that begins."""
    try:
        descriptor, size = open_sized(path)
    except OSError:
        return b"", begin
    with closing_fd(descriptor):
        begin = max(begin, size - MAX_READ_BYTES)
        return os.pread(descriptor, MAX_READ_BYTES, begin), begin


def _lines(content: bytes) -> list[str]:
    """Return lines without control characters."""
    text = content.decode("utf-8", "replace")
    return [
        "".join(sign if sign.isprintable() or sign == "\t" else "?" for sign in line)
        for line in text.splitlines()
    ]


class _Watcher:
    """Queries Slurm about a job periodically, and tolerates missing answers for some minutes."""

    def __init__(self, job: str, look: Callable[[str], JobState]) -> None:
        self._job = job
        self._look = look
        self._answered = self._changed = time.monotonic()
        self._asked = -ASK_EVERY
        self.state = JobState("UNKNOWN")

    def ask(self) -> bool:
        """Query Slurm if it is time to; return whether the job has ended and is not requeued.

        Raises
        ------
        DistcacheError
            If Slurm does not answer for too long.
        """
        now = time.monotonic()
        if now - self._asked >= ASK_EVERY:
            self._asked = now
            try:
                state = self._look(self._job)
            except (BuildInterrupted, ConfigError):
                raise
            except DistcacheError:
                if now - self._answered > limits().slurm_silence:
                    raise
            else:
                self._changed = self._changed if state.state == self.state.state else now
                self.state, self._answered = state, now
        settled = self._asked - self._changed >= limits().requeue
        return self.state.ended and (settled or not self.state.may_be_requeued)


def follow(
    files: JobFiles, tell: Callable[[str], None], look: Callable[[str], JobState] = look_at_job
) -> JobState:
    """Wait until a job has ended, and forward what rank 0 writes.

    There is no timeout while Slurm answers; every minute a message says what a pending job waits
    for.

    Raises
    ------
    ConfigError
        If it waits for what can never be: it asks for more than the partition or the account has.
    DistcacheError
        If Slurm does not answer for ten minutes.
    """
    tail, watcher = Tail(files.first_log), _Watcher(files.job, look)
    told, told_at, ended = "", 0.0, False
    while not ended:
        ended, now = watcher.ask(), time.monotonic()
        words = f"pre-job {files.job}: {watcher.state.state.lower()} {watcher.state.reason}"
        waits = watcher.state.state == "PENDING" and now - told_at >= TELL_EVERY
        if words != told or waits:
            tell(words.rstrip())
            told, told_at = words, now
        if watcher.state.state == "PENDING" and NEVER.fullmatch(watcher.state.reason):
            raise ConfigError(
                f"pre-job {files.job}: can never start ({watcher.state.reason}): it asks for more "
                "than the partition or the account may give; change --nodes, --ntasks-per-node, "
                "--cpus-per-task, --mem, --time or --partition (sinfo and sacctmgr say what there "
                "is)"
            )
        for line in tail.lines():
            tell(CLOCK.sub("", line, count=1))
        time.sleep(0 if ended else LOG_POLL)
    return watcher.state


def failure(files: JobFiles, state: JobState) -> DistcacheError:
    """Return the error of a failed job: the messages of its ranks, else those of Slurm.

    Parameters
    ----------
    files : JobFiles
        Files of a job that has ended.
    state : JobState
        Last state of the job.
    """
    logs = [_last_start(log) for log in files.logs()]
    lines = dict.fromkeys(line for log in logs for line in log)  # in order, each once
    ours = [line.removeprefix(OUR_PREFIX) for line in lines if line.startswith(OUR_PREFIX)]
    slurms = [line for line in lines if line.startswith(SLURM_PREFIXES)]
    said = (ours or [*_last_words(logs), *slurms])[-MOST_LINES:]
    detail = state.reason if state.reason not in ("", "NonZeroExitCode") else ""
    code = f" (exit code {state.exit_code})" if state.exit_code else ""
    how = f"{state.state} {detail}".strip() + code
    summary = f"pre-job {files.job}: {how}; its logs: {files.directory}/{files.job}_*"
    # The exit code of srun may be that of a killed rank.
    found = (re.search(r"Exited with exit code (\d+)", line) for line in slurms)
    codes = [state.exit_code, *(int(match.group(1)) for match in found if match)]
    known = {kind.exit_code for kind in DistcacheError.__subclasses__()} - {1}
    failed = next((code for code in codes if code in known), DistcacheError.exit_code)
    return error_from_exit_code(failed, *said, summary)


def _last_start(log: Path) -> list[str]:
    """Return what a rank has written since the job was last started."""
    lines = _lines(_read(log, 0)[0])
    starts = [number for number, line in enumerate(lines) if line.startswith(START)]
    return lines[starts[-1] :] if starts else lines


def _last_words(logs: Iterable[list[str]]) -> list[str]:
    """Return the last lines of a rank that ended without an error of distcache."""
    known = (OUR_PREFIX, START, *SLURM_PREFIXES, "srun:", "[")  # the last is of phases
    others = ([line for line in log if not line.startswith(known)] for log in logs)
    return next((found[-LAST_WORDS:] for found in others if found), [])
