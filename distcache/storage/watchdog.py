"""A watchdog: a count of progress in this process, and calls that end without progress."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from distcache.errors import DistcacheError
from distcache.storage.interruption import answer_signals

Result = TypeVar("Result")
LOOKS: Final = 20  # within the time after which an action is abandoned
_stuck = False
_count = 0  # lost increments do not matter: it only has to change


class Stalled(DistcacheError):
    """There was no progress for too long."""

    local = True


def tick() -> None:
    """Count progress: something was read, written or finished. Called from any thread.

    Raises
    ------
    BuildInterrupted
        In the main thread, if a signal came while a library ran.
    """
    global _count  # noqa: PLW0603  of the process
    _count += 1
    answer_signals()


def ticks() -> int:
    """Return the count."""
    return _count


def has_abandoned_thread() -> bool:
    """Return whether a thread hangs, for which the interpreter would wait at its end."""
    return _stuck


def abandon_thread() -> None:
    """Note that a thread hangs: the process will end without waiting for it."""
    global _stuck  # noqa: PLW0603  of the process
    _stuck = True


def stalled(what: str, seconds: float) -> Stalled:
    """Return the error of an action that hangs in an abandoned thread."""
    abandon_thread()
    return Stalled(f"{what}: no progress for {seconds:.0f} s; does a filesystem hang?")


def run_with_watchdog(action: Callable[[], Result], limit: float, what: str) -> Result:
    """Run an action in a thread, and abandon it when it makes no progress.

    Parameters
    ----------
    action : callable
        It counts its progress by `tick`.
    limit : float
        Seconds without a change of `ticks`.
    what : str
        Description for the message.

    Returns
    -------
    object
        Result of the action.

    Raises
    ------
    Stalled
        The thread is abandoned, and hangs as long as its filesystem does; end the process by
        `os._exit`.
    """
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.extend((action(), None))
        except BaseException as error:  # noqa: BLE001  raised again below
            outcome.extend((None, error))

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(run,), name="watched", daemon=True)
    thread.start()
    seen, since = ticks(), time.monotonic()
    while True:
        try:
            thread.join(limit / LOOKS)
        except BaseException:  # a signal: the process ends, and the thread with it
            abandon_thread()
            raise
        if not thread.is_alive():
            result, error = outcome
            if error is not None:
                raise error
            return result  # type: ignore[no-any-return]
        if ticks() != seen:
            seen, since = ticks(), time.monotonic()
        elif time.monotonic() - since >= limit:
            raise stalled(what, limit)
