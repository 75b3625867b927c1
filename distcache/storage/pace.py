"""How many requests a process sends at a time: more after answers, half when asked to slow down."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

FIRST_LIMIT: Final = 32
MIN_LIMIT: Final = 4
MAX_WINDOW: Final = 128
_background: ContextVar[bool] = ContextVar("background", default=False)
MAX_WAIT: Final = 60.0  # seconds, which threads count with; longer ones are in parts
QUIET_SECONDS: Final = 1.0  # seconds: requests that were sent together are slowed down once


@contextmanager
def in_background() -> Iterator[None]:
    """Let requests of this thread, for which nobody waits, come after those of others."""
    token = _background.set(True)
    try:
        yield
    finally:
        _background.reset(token)


class Window:
    """The number of requests at a time, by additive increase and multiplicative decrease: pure.

    Attributes
    ----------
    size : float
        Requests at a time.
    """

    def __init__(
        self, first: float = FIRST_LIMIT, least: float = MIN_LIMIT, most: float = MAX_WINDOW
    ) -> None:
        self.size = self._first = first
        self._least = least
        self._most = most
        self._slowed = float("-inf")

    def succeeded(self) -> None:
        """Grow by one request for as many successes as are sent at a time."""
        if self.size < self._least:  # it was away
            self.size = self._first
        self.size = min(self.size + 1 / self.size, self._most)

    def slow_down(self, now: float) -> None:
        """Halve, at most once in `QUIET_SECONDS`."""
        if now - self._slowed >= QUIET_SECONDS and self.size >= self._least:
            self.size = max(self.size / 2, self._least)
            self._slowed = now

    def away(self) -> None:
        """Send one request at a time, until one is answered: nothing else has been for long."""
        self.size = 1.0


class Pace:
    """Lets threads send requests, as many at a time as the window says.

    Parameters
    ----------
    window : Window
        Decides.
    clock : callable
        Seconds.
    """

    def __init__(self, window: Window, clock: Callable[[], float] = time.monotonic) -> None:
        self._window = window
        self._clock = clock
        self._going = 0
        self._urgent = 0  # requests that somebody waits for, and that wait for a place
        lock = threading.Lock()
        self._changed = threading.Condition(lock)
        self._first = threading.Condition(lock)  # of those that somebody waits for

    @property
    def size(self) -> int:
        """Requests at a time, now."""
        return int(self._window.size)

    @contextmanager
    def request(self, until: float = float("inf")) -> Iterator[None]:
        """Wait for a place in the window, and hold it for the block.

        Raises
        ------
        TimeoutError
            If there is none at a time of the clock.
        """
        urgent = not _background.get()
        with self._changed:
            self._urgent += urgent
            while self._going >= int(self._window.size) or (self._urgent and not urgent):
                left = until - self._clock()
                if left <= 0:
                    self._urgent -= urgent
                    raise TimeoutError
                (self._first if urgent else self._changed).wait(min(left, MAX_WAIT))
            self._urgent -= urgent
            self._going += 1
            self._let_in()  # what has grown, or the last that came first
        try:
            yield
        finally:
            with self._changed:
                self._going -= 1
                self._let_in()

    def _let_in(self) -> None:
        if self._going < int(self._window.size):
            (self._first if self._urgent else self._changed).notify()

    def succeeded(self) -> None:
        """Note an answer."""
        with self._changed:
            self._window.succeeded()

    def away(self) -> None:
        """Note that the store does not answer at all."""
        with self._changed:
            self._window.away()

    def slow_down(self) -> None:
        """Note that the store asks for fewer requests."""
        with self._changed:
            self._window.slow_down(self._clock())
