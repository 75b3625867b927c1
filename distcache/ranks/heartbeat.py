"""The heartbeat of a job: that rank 0 is alive, how far it is, and which ranks make progress.

Every two seconds rank 0 replaces a small file in the workspace, which waiting jobs read. Everybody
may read it and the lock, but not list the directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from distcache.ranks.communicator import Communicator
from distcache.ranks.progress import Stopwatch
from distcache.storage.files import closing_fd, read_range, set_mode
from distcache.storage.locks import LOCK
from distcache.storage.threads import decodable
from distcache.storage.timeouts import limits
from distcache.storage.watchdog import ticks

NAME: Final = "progress.json"
COUNTS: Final = "counts"
BEATS: Final = (NAME, f"{NAME}.part", COUNTS)
"""The files of a heartbeat."""
MAX_HEARTBEAT_BYTES: Final = 1 << 16  # bytes of a heartbeat; more are not read
VISIBLE: Final = 0o644  # the mode of files that everybody may read
COUNT: Final = np.dtype("<u8")
RANKS_PER_SECOND: Final = 200  # which write their counts
QUIET: Final = 10  # heartbeats without progress, after which a rank is named


@decodable
class Beat(msgspec.Struct, frozen=True):
    """One heartbeat, in ``progress.json``."""

    # host and process of rank 0
    host: str
    process: int
    phase: str  # the current phase
    fraction: float | None  # progress of the phase, from 0 to 1
    sign: str  # random; differs in every heartbeat
    # differs whenever any rank has made progress; None in heartbeats of old versions
    moved: int | None = None
    # ranks that have made no progress for long, although they do not wait for others
    quiet: str = ""

    def __str__(self) -> str:
        done = "" if self.fraction is None else f" {self.fraction:.0%}"
        quiet = f"; {self.quiet}" if self.quiet else ""
        return f"process {self.process} on {self.host} ({self.phase}{done}{quiet})"


def write_beat(
    directory: Path,
    phase: str,
    fraction: float | None,
    moved: int | None = None,
    quiet: str = "",
) -> None:
    """Write a heartbeat into a directory of unfinished files."""
    token = secrets.token_hex(8)
    beat = Beat(socket.gethostname(), os.getpid(), phase, fraction, token, moved, quiet)
    temporary = directory / f"{NAME}.part"
    temporary.unlink(missing_ok=True)  # never write through a link or into a pipe
    with open(temporary, "xb") as stream:
        set_mode(stream.fileno(), VISIBLE)
        stream.write(msgspec.json.encode(beat))
    os.replace(temporary, directory / NAME)


def read_beat(directory: Path) -> Beat | None:
    """Return the last heartbeat in a directory of unfinished files, or None.

    Raises
    ------
    PermissionError
        If this user may not read it.
    """
    descriptor = _open(directory / NAME)
    if descriptor is None:
        return None
    with closing_fd(descriptor), contextlib.suppress(OSError, ValueError, RecursionError):
        return msgspec.json.decode(os.read(descriptor, MAX_HEARTBEAT_BYTES), type=Beat)
    return None


def _open(path: Path) -> int | None:
    """Open a file of the heartbeat; None if it does not exist. Raises PermissionError."""
    try:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError:
        raise
    except OSError:
        return None


def is_locked(directory: Path) -> bool:
    """Return whether a job holds the lock of its workspace, as far as this node can see.

    Raises
    ------
    PermissionError
        If this user may not read it.
    """
    descriptor = _open(directory / LOCK)
    if descriptor is None:
        return False
    with closing_fd(descriptor), contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    return True


class Monitor:
    """Watches the heartbeat of a job, by the clock of this process only.

    Parameters
    ----------
    directory : Path
        Directory of the job's unfinished files.
    clock : callable
        Seconds.

    Attributes
    ----------
    beat : Beat or None
        The last heartbeat.
    hidden : bool
        Whether this user may not read it; then nothing is known of the job.
    """

    def __init__(self, directory: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._directory = directory
        self._clock = clock
        self._beat = self._motion = clock()
        self.beat: Beat | None = None
        self.hidden = False

    def look(self) -> None:
        """Read the heartbeat."""
        now, before = self._clock(), self.beat
        self.hidden = False
        try:
            self.beat = read_beat(self._directory)
        except PermissionError:
            self.hidden = True
            return
        if self.beat != before:
            self._beat = now
            then, moved = (beat and beat.moved for beat in (before, self.beat))
            if then is None or then != moved:
                self._motion = now

    @property
    def silence(self) -> float:
        """Seconds since the last heartbeat."""
        return self._clock() - self._beat

    @property
    def stillness(self) -> float:
        """Seconds since any rank has made progress."""
        return self._clock() - self._motion

    @property
    def locked(self) -> bool:
        """Whether the job holds its lock; true if that cannot be seen."""
        with contextlib.suppress(PermissionError):
            return is_locked(self._directory)
        return True


class Heartbeat:
    """Writes the heartbeat from a thread; a context manager.

    Every rank writes its count of progress, and whether it waits for others, into a file of the
    workspace. Rank 0 reads the counts of all ranks and replaces the heartbeat.

    Parameters
    ----------
    directory : Path
        Directory of the unfinished files.
    watch : Stopwatch
        The progress of this rank.
    communicator : Communicator
        Group of all ranks; nothing is sent.
    """

    def __init__(self, directory: Path, watch: Stopwatch, communicator: Communicator) -> None:
        self._directory = directory
        self._path = directory / COUNTS
        self._watch = watch
        self._communicator = communicator
        self._period = max(limits().heartbeat, communicator.size / RANKS_PER_SECOND)
        self._counts: NDArray[np.uint64] = np.zeros(communicator.size, COUNT)
        self._changed = np.full(communicator.size, time.monotonic())
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Stop writing, so that the workspace can be removed."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        begin = -self._period
        while True:
            # Errors such as a full disk are ignored here: the build itself reports them.
            if time.monotonic() - begin >= self._period:
                begin = time.monotonic()
                with contextlib.suppress(OSError, EOFError):
                    self._count()
            if self._communicator.rank == 0:
                with contextlib.suppress(OSError):
                    moved = int(self._counts.sum() >> np.uint64(1))
                    now, part = self._watch.current, self._watch.fraction
                    write_beat(self._directory, now, part, moved, self._quiet())
            if self._ended.wait(limits().heartbeat):
                return

    def _count(self) -> None:
        """Write this rank's count; rank 0 reads those of all."""
        own = 2 * ticks() + self._communicator.waiting
        rank, size = self._communicator.rank, self._communicator.size
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT if rank == 0 else 0)
        # Opened each time: a filesystem with close-to-open consistency shows the counts of others.
        with closing_fd(os.open(self._path, flags, 0o600)) as descriptor:
            # Not by `write_range`, which counts as activity of this rank.
            os.pwrite(descriptor, np.array([own], COUNT).tobytes(), COUNT.itemsize * rank)
            if rank == 0:
                os.ftruncate(descriptor, COUNT.itemsize * size)
                counts = np.frombuffer(read_range(descriptor, 0, COUNT.itemsize * size), COUNT)
                self._changed[counts != self._counts] = time.monotonic()
                self._counts = counts.copy()

    def _quiet(self) -> str:
        """Return which ranks make no progress although they do not wait, for messages."""
        still = time.monotonic() - self._changed
        quiet = np.flatnonzero((still > QUIET * self._period) & (self._counts % 2 == 0))
        if not len(quiet):
            return ""
        others = f" and {len(quiet) - 1} more" if len(quiet) > 1 else ""
        return f"rank {quiet[0]}{others} has made no progress for {still[quiet[0]]:.0f} s"
