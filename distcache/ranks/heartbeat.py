"""The heartbeat of a job that writes: that rank 0 is alive, and whether any rank moves."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from distcache.activity import activity
from distcache.files import read_range
from distcache.life import COUNTS, show
from distcache.progress import Stopwatch
from distcache.ranks.communicator import Communicator
from distcache.timeouts import limits

__all__ = ["Heartbeat"]

COUNT: Final = np.dtype("<u8")
RANKS_PER_SECOND: Final = 200  # that write their counts
QUIET: Final = 10  # heartbeats without a change, after which a rank is named


class Heartbeat:
    """Tells from a thread how a job goes, while it is entered.

    Every rank writes its count of activity, and whether it waits for others, at its place of a file
    of the directory. Rank 0 makes it, reads all counts, and replaces the heartbeat, which so tells
    of all ranks.

    Parameters
    ----------
    directory : Path
        Of the unfinished files.
    watch : Stopwatch
        Says what this rank does.
    communicator : Communicator
        Of all ranks; nothing is sent.
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def end(self) -> None:
        """Write nothing more, so that the workspace can be removed."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        begin = -self._period
        while True:
            # A full disk must not end the build here; where it does, its error says so.
            if time.monotonic() - begin >= self._period:
                begin = time.monotonic()
                with contextlib.suppress(OSError, EOFError):
                    self._count()
            if self._communicator.rank == 0:
                with contextlib.suppress(OSError):
                    self._show()
            if self._ended.wait(limits().heartbeat):
                return

    def _count(self) -> None:
        """Write this rank's count; rank 0 reads those of all."""
        own = 2 * activity() + self._communicator.waiting
        rank, size = self._communicator.rank, self._communicator.size
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT if rank == 0 else 0)
        # Opened each time: a filesystem with close-to-open consistency shows the counts of others.
        descriptor = os.open(self._path, flags, 0o600)
        try:
            # Not by `write_range`, which counts as activity of this rank.
            os.pwrite(descriptor, np.array([own], COUNT).tobytes(), COUNT.itemsize * rank)
            if rank == 0:
                os.ftruncate(descriptor, COUNT.itemsize * size)
                counts = np.frombuffer(read_range(descriptor, 0, COUNT.itemsize * size), COUNT)
                self._changed[counts != self._counts] = time.monotonic()
                self._counts = counts.copy()
        finally:
            os.close(descriptor)

    def _show(self) -> None:
        moved = int(self._counts.sum() >> np.uint64(1))
        show(self._directory, self._watch.current, self._watch.fraction, moved, self._quiet())

    def _quiet(self) -> str:
        """Say which ranks do not move, though they do not wait."""
        still = time.monotonic() - self._changed
        quiet = np.flatnonzero((still > QUIET * self._period) & (self._counts % 2 == 0))
        if not len(quiet):
            return ""
        others = f" and {len(quiet) - 1} more" if len(quiet) > 1 else ""
        return f"rank {quiet[0]}{others} has not moved for {still[quiet[0]]:.0f} s"
