"""Follow a pre-job of Slurm: print its log, and report why it has failed."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from distcache.errors import ConfigError, DistcacheError, error_from_exit_code
from distcache.extras import how_to_install
from distcache.launch.commands import call
from distcache.launch.scripts import START
from distcache.storage.files import closing_fd, open_sized
from distcache.storage.timeouts import limits
from distcache.storage.watchdog import Stalled, run_with_watchdog

if TYPE_CHECKING:
    from submitit import SlurmJob

LOG_POLL: Final = 1.0  # seconds between two reads of the log
ASK_EVERY: Final = 5.0  # seconds between two queries of Slurm
TELL_EVERY: Final = 60.0  # seconds between two messages about a waiting job
UNKNOWN: Final = "UNKNOWN"  # submitit's state of a job of which Slurm says nothing
# States in which a job has not ended (squeue, "JOB STATE CODES"); submitit knows some of them.
LIVE: Final = (
    "COMPLETING CONFIGURING PENDING READY REQUEUED REQUEUE_FED REQUEUE_HOLD RESIZING "
    "RESV_DEL_HOLD RUNNING SIGNALING SPECIAL_EXIT STAGE_OUT STOPPED SUSPENDED UNKNOWN"
)
# A job that Slurm requeues is in one of these for a moment.
MAY_BE_REQUEUED: Final = ("BOOT_FAIL", "NODE_FAIL", "PREEMPTED")
CLOCK: Final = re.compile(r"\[ *[\d.]+ s\] ")  # of our lines; the follower has its own
OUR_PREFIX: Final = "distcache: "
SLURM_PREFIXES: Final = ("srun: error:", "slurmstepd: error:", "slurmstepd-")
MAX_LINES: Final = 20
LAST_WORDS: Final = 5  # lines
EXITED: Final = re.compile(r"Exited with exit code (\d+)")
MAX_READ_BYTES: Final = 1 << 20  # bytes of one read of a log


# Reasons of a pending job that do not pass by waiting (Slurm, slurm_reason_string).
NEVER_STARTED: Final = re.compile(
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


def job_class() -> type[SlurmJob[Any]]:
    """Return submitit's class of jobs.

    Raises
    ------
    ConfigError
        If there is no submitit.
    """
    try:
        from submitit import SlurmJob  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(f"--wait needs submitit ({error}): {how_to_install('slurm')}") from error
    # It would write to standard output, every few seconds, that sacct does not answer.
    logging.getLogger("submitit").setLevel(logging.CRITICAL)
    return SlurmJob


class _Watcher:
    """Asks submitit about a job periodically, and tolerates missing answers for some minutes."""

    def __init__(self, job: SlurmJob[Any]) -> None:
        self._job = job
        self._answered = self._changed = time.monotonic()
        self._asked = -ASK_EVERY
        self.state = UNKNOWN

    def ask(self) -> bool:
        """Ask if it is time to; return whether the job has ended and is not requeued.

        Raises
        ------
        DistcacheError
            If Slurm says nothing for too long.
        """
        now = time.monotonic()
        if now - self._asked < ASK_EVERY:
            return False
        self._asked = now
        self._job.watcher.clear()  # a job that has ended may start again
        state = UNKNOWN
        with contextlib.suppress(Stalled):
            state = run_with_watchdog(
                lambda: self._job.watcher.get_state(self._job.job_id, "force").split()[0],
                limits().command,
                "sacct",
            )
        if state != UNKNOWN:
            self._answered = now
            self._changed = self._changed if state == self.state else now
            self.state = state
        elif now - self._answered > limits().slurm_silence:
            raise DistcacheError(
                f"pre-job {self._job.job_id}: sacct has said nothing of it for "
                f"{limits().slurm_silence:.0f} s; does this cluster keep accounts? `distcache "
                "ready CACHE --wait SECONDS` waits without them"
            )
        settled = now - self._changed >= limits().requeue
        return settled if self.state in MAY_BE_REQUEUED else self.state not in LIVE.split()


def follow(job: SlurmJob[Any], log: Path, tell: Callable[[str], None]) -> str:
    """Wait until a job has ended, forward what it writes, and return its last state.

    There is no timeout while Slurm answers; every minute a message says what a pending job waits
    for.

    Raises
    ------
    ConfigError
        If it waits for what can never be: it asks for more than the partition or the account has.
    DistcacheError
        If Slurm says nothing of it for ten minutes.
    """
    tail, watcher = Tail(log), _Watcher(job)
    told, told_at, ended = "", 0.0, False
    while not ended:
        ended, now = watcher.ask(), time.monotonic()
        if watcher.state != told or (watcher.state == "PENDING" and now - told_at >= TELL_EVERY):
            reason = _reason(job.job_id) if watcher.state == "PENDING" else ""
            tell(f"pre-job {job.job_id}: {watcher.state.lower()} {reason}".rstrip())
            told, told_at = watcher.state, now
            if NEVER_STARTED.fullmatch(reason):
                raise ConfigError(
                    f"pre-job {job.job_id}: can never start ({reason}): it asks for more than the "
                    "partition or the account may give; change --nodes, --ntasks-per-node, "
                    "--cpus-per-task, --mem, --time or --partition (sinfo and sacctmgr say what "
                    "there is)"
                )
        for line in tail.lines():
            tell(CLOCK.sub("", line, count=1))
        time.sleep(0 if ended else LOG_POLL)
    return watcher.state


def _reason(job: str) -> str:
    """Return why a job is pending, in a word of Slurm's."""
    try:
        return call(["squeue", "--noheader", "--jobs", job, "--format=%r"]).strip()
    except DistcacheError:
        return ""


def failure(job: str, log: Path, state: str) -> DistcacheError:
    """Return the error of a failed job: the messages of its ranks, else those of Slurm.

    Parameters
    ----------
    job : str
        Number of a job that has ended.
    log : Path
        Path of the output of its ranks and its script.
    state : str
        Last state of the job.
    """
    lines = _last_start(log)
    once = dict.fromkeys(lines)
    ours = [line.removeprefix(OUR_PREFIX) for line in once if line.startswith(OUR_PREFIX)]
    slurms = [line for line in once if line.startswith(SLURM_PREFIXES)]
    said = (ours or [*_last_words(lines), *slurms])[-MAX_LINES:]
    # A rank that is killed has another exit code than the one that failed.
    codes = [int(found[1]) for line in slurms if (found := EXITED.search(line)) is not None]
    known = {kind.exit_code for kind in DistcacheError.__subclasses__()} - {1}
    code = next((code for code in codes if code in known), DistcacheError.exit_code)
    return error_from_exit_code(code, *said, f"pre-job {job}: {state}; its log: {log}")


def _last_start(log: Path) -> list[str]:
    """Return what a job has written since it was last started."""
    lines = _lines(_read(log, 0)[0])
    starts = [number for number, line in enumerate(lines) if line.startswith(START)]
    return lines[starts[-1] :] if starts else lines


def _last_words(lines: Sequence[str]) -> list[str]:
    """Return the last lines of ranks that ended without an error of distcache, each once.

    Of equal lines the last counts: ranks end alike, and what a rank writes last says why.
    """
    known = (OUR_PREFIX, START, *SLURM_PREFIXES, "srun:", "[")  # the last is of phases
    found = dict.fromkeys(line for line in reversed(lines) if not line.startswith(known))
    return list(found)[:LAST_WORDS][::-1]
