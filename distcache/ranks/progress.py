"""The progress of a job, and how long each phase took."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from distcache.storage.watchdog import tick


class Progress(Protocol):
    """Receives the progress of rank 0, which is representative, as work is balanced."""

    def phase(self, name: str, total: float = 0) -> None:
        """Begin a phase of so much work; 0 if that is not known."""
        ...

    def advance(self, amount: float) -> None:
        """Count work as done. Called from any thread."""
        ...

    def note(self, message: str) -> None:
        """Log a message."""
        ...


class NullProgress:
    """Ignores everything."""

    def phase(self, name: str, total: float = 0) -> None:
        """Do nothing."""

    def advance(self, amount: float) -> None:
        """Do nothing."""

    def note(self, message: str) -> None:
        """Do nothing."""


class Stopwatch:
    """Forwards everything to another progress, and measures the phases.

    Parameters
    ----------
    progress : Progress
        The other one.
    waited : callable
        Returns the seconds so far spent waiting for other ranks.

    Attributes
    ----------
    seconds, waits : dict of str to float
        Duration of each finished phase, and the time spent waiting in it.
    current : str
        The current phase.
    """

    def __init__(self, progress: Progress, waited: Callable[[], float] = float) -> None:
        self._progress = progress
        self._waited = waited
        self._begin, self._waited_before = time.perf_counter(), waited()
        self._total = self._done = 0.0
        self.seconds: dict[str, float] = {}
        self.waits: dict[str, float] = {}
        self.current = ""

    @property
    def fraction(self) -> float | None:
        """Progress of the current phase, from 0 to 1; None if unknown."""
        return min(self._done / self._total, 1.0) if self._total else None

    def phase(self, name: str, total: float = 0) -> None:
        """Begin a phase, and end the previous one."""
        tick()
        self.stop()
        self._begin, self._waited_before = time.perf_counter(), self._waited()
        self.current = name
        self._total, self._done = total, 0.0
        self._progress.phase(name, total)

    def stop(self) -> None:
        """End the current phase."""
        if self.current:
            self.seconds[self.current] = time.perf_counter() - self._begin
            self.waits[self.current] = self._waited() - self._waited_before

    def advance(self, amount: float) -> None:
        """Count work as done."""
        tick()
        self._done += amount
        self._progress.advance(amount)

    def note(self, message: str) -> None:
        """Log a message."""
        self._progress.note(message)
