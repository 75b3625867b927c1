"""Turns a signal that ends this process's work into an error at the next safe point.

An exception that a handler raises within a library becomes whatever that library makes of it: an
import that failed, a text without tokens. So the handler inspects the frames that it interrupts.
While a library runs it only notes the signal: our loops look for it (`answer_signals`), and the
signal comes again soon. A library that continues for too long is interrupted nevertheless, and
`require_uninterrupted` raises the error again where it may have been lost.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Final

from distcache.errors import BuildInterrupted

SOON: Final = 0.005  # seconds until a signal that came within a library comes again
PATIENCE: Final = 1.0  # seconds for which libraries are waited for
CLEANUP_SECONDS: Final = 1.5  # seconds from the error to the end of a process alone
SECOND_SIGNAL: Final = 0.5  # seconds after which another signal is meant as another one
# Modules of Python that wait, and pass an exception on.
WAITING: Final = (
    *("threading", "time", "selectors", "subprocess", "socket", "queue", "contextlib"),
    *("concurrent.futures", "signal"),
)

_interruption: BuildInterrupted | None = None
_asked: str | None = None  # the message of a signal that has not raised its error yet
_first: float | None = None  # when the first signal came, by time.monotonic
_sent = False  # by ourselves
_ending = False


def interrupt(message: str) -> None:
    """Raise the error for a signal; only for the first, since others must not end the cleanup.

    Raises
    ------
    BuildInterrupted
        With the message.
    """
    global _interruption  # noqa: PLW0603  of the process
    if _interruption is None:
        _interruption = BuildInterrupted(message)
        raise _interruption


def interrupt_at(frame: FrameType | None, number: int, message: str, *, alone: bool) -> None:
    """Interrupt this process's work, from the handler of a signal.

    Where a library runs, the signal is sent again soon, until `PATIENCE` is over. A process alone
    ends with its work unfinished if that takes longer than `CLEANUP_SECONDS`, as within a kernel,
    and at once at a second signal: what is finished is on the disk by then, as after a kill.

    Parameters
    ----------
    frame : frame or None
        Frame that the signal has interrupted.
    number : int
        Number of the signal.
    message : str
        Message of the error.
    alone : bool
        Whether no other rank waits for this process.

    Raises
    ------
    BuildInterrupted
        With the message.
    """
    global _asked, _first, _sent  # noqa: PLW0603  of the process
    now, own, _sent = time.monotonic(), _sent, False
    if _first is None:
        _first = now
        try:
            follow = threading.Thread(
                target=_follow, args=(number, message), kwargs={"alone": alone}, daemon=True
            )
            follow.start()
        except RuntimeError:  # no thread can be started, so that nothing can be put off
            interrupt(message)
    elif alone and not own and now - _first > SECOND_SIGNAL:
        _leave(message)
    if now - _first < PATIENCE and _is_within_library(frame):
        _asked = message
        return
    interrupt(message)


def answer_signals() -> None:
    """Raise the error of a signal that came while a library ran; for our loops, in any thread.

    Raises
    ------
    BuildInterrupted
        In the main thread, once.
    """
    if _asked is not None and threading.current_thread() is threading.main_thread():
        interrupt(_asked)


def interruption() -> BuildInterrupted | None:
    """Return the error of the signal that has ended this process's work, if one has."""
    return _interruption


def require_uninterrupted() -> None:
    """Raise the error again: a library may have made another one of it.

    Raises
    ------
    BuildInterrupted
        If there was a signal.
    """
    answer_signals()
    if _interruption is not None:
        raise _interruption


def end_by_itself() -> None:
    """Note that the process is ending: nobody has to see to it any more."""
    global _ending  # noqa: PLW0603  of the process
    _ending = True


def _is_within_library(frame: FrameType | None) -> bool:
    """Return whether a library runs, between this frame and the command that called it."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith("distcache.cli."):
            return False
        if name.partition(".")[0] != "distcache" and not name.startswith(WAITING):
            return True
        frame = frame.f_back
    return False


def _follow(number: int, message: str, *, alone: bool) -> None:
    """Send a signal again until its error is raised; then see to it that the process ends."""
    global _sent  # noqa: PLW0603  of the process
    main = threading.main_thread().ident
    assert main is not None, "it has begun"
    while _interruption is None and not _ending:
        time.sleep(SOON)
        _sent = True
        signal.pthread_kill(main, number)
    time.sleep(CLEANUP_SECONDS)
    if alone and not _ending:
        _leave(message)


def _leave(message: str) -> None:
    """End the process at once."""
    with contextlib.suppress(OSError):
        os.write(sys.stderr.fileno(), f"distcache: {message}\n".encode())
    os._exit(BuildInterrupted.exit_code)
