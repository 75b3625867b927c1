"""A counter of all that moves in this process: whoever watches it sees whether anything does."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from distcache.errors import DistcacheError

__all__ = ["Stalled", "activity", "is_stuck", "leave_behind", "moved", "run_watched", "stalled"]

Result = TypeVar("Result")
_stuck = False
_count = 0  # lost increments do not matter: it only has to change


class Stalled(DistcacheError):
    """Nothing has moved for too long."""

    local = True


def moved() -> None:
    """Count something that was read, written or finished. Called from any thread."""
    global _count  # noqa: PLW0603  of the process
    _count += 1


def activity() -> int:
    """Return the count."""
    return _count


def is_stuck() -> bool:
    """Tell whether a thread was left behind, for which the interpreter would wait in the end."""
    return _stuck


def leave_behind() -> None:
    """Say that a thread goes on, or hangs, which nobody waits for: the process ends without it."""
    global _stuck  # noqa: PLW0603  of the process
    _stuck = True


def stalled(what: str, seconds: float) -> Stalled:
    """Return the error of something that hangs in a thread, which is left behind."""
    leave_behind()
    return Stalled(f"{what}: nothing has moved for {seconds:.0f} s; does a filesystem hang?")


def run_watched(action: Callable[[], Result], limit: float, what: str) -> Result:
    """Run something in a thread of its own, and give it up when nothing moves any more.

    Parameters
    ----------
    action : callable
        It counts what it does by `moved`.
    limit : float
        Seconds without a change of `activity`.
    what : str
        For the message.

    Returns
    -------
    object
        What the action returns.

    Raises
    ------
    Stalled
        The thread is left behind, and hangs as long as its filesystem does; end the process by
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
    seen = activity()
    while True:
        try:
            thread.join(limit)
        except BaseException:  # a signal: the process ends, and the thread with it
            leave_behind()
            raise
        if not thread.is_alive():
            result, error = outcome
            if error is not None:
                raise error
            return result  # type: ignore[no-any-return]
        if activity() == seen:
            raise stalled(what, limit)
        seen = activity()
