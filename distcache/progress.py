"""One small interface for telling how far a build is, and what each phase took."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from distcache.activity import moved

__all__ = ["Progress", "Silent", "Stopwatch"]


class Progress(Protocol):
    """Told what rank 0 does. Its share of the work stands for all: shares are balanced."""

    def phase(self, name: str, total: float = 0) -> None:
        """Begin a phase of so much work; 0 if that is not known."""
        ...

    def advance(self, amount: float) -> None:
        """Count work as done. Called from any thread."""
        ...

    def note(self, message: str) -> None:
        """Tell something once."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was."""
        ...


class Silent:
    """Tells nobody."""

    def phase(self, name: str, total: float = 0) -> None:
        """Do nothing."""

    def advance(self, amount: float) -> None:
        """Do nothing."""

    def note(self, message: str) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class Stopwatch:
    """Passes everything on to another progress, and keeps the seconds that each phase took.

    Parameters
    ----------
    progress : Progress
        The other one.
    waited : callable
        Returns the seconds so far that were spent waiting for others.

    Attributes
    ----------
    seconds, waits : dict of str to float
        By phase, without the one that is going on: all seconds, and those that were waited.
    current : str
        The phase that is going on.
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
        """How much of the current phase is done, from 0 to 1; None if that is not known."""
        return min(self._done / self._total, 1.0) if self._total else None

    def phase(self, name: str, total: float = 0) -> None:
        """Begin a phase, and end the one before."""
        moved()
        self.stop()
        self._begin, self._waited_before = time.perf_counter(), self._waited()
        self.current = name
        self._total, self._done = total, 0.0
        self._progress.phase(name, total)

    def stop(self) -> None:
        """End the phase that is going on."""
        if self.current:
            self.seconds[self.current] = time.perf_counter() - self._begin
            self.waits[self.current] = self._waited() - self._waited_before

    def advance(self, amount: float) -> None:
        """Count work as done."""
        moved()
        self._done += amount
        self._progress.advance(amount)

    def note(self, message: str) -> None:
        """Tell something once."""
        self._progress.note(message)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._progress.close()
