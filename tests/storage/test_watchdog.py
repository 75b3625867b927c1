"""What is watched is abandoned when nothing moves, or when a signal ends the process."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType

import pytest

from distcache.errors import BuildInterrupted
from distcache.storage import watchdog
from distcache.storage.watchdog import Stalled, has_abandoned_thread, run_with_watchdog, tick


@pytest.fixture(autouse=True)
def nothing_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process."""
    monkeypatch.setattr(watchdog, "_stuck", False)


def test_what_moves_may_take_long() -> None:
    """What moves may take long, and its result, or its error, is that of the action."""

    def act() -> int:
        for _ in range(8):
            time.sleep(0.05)
            tick()
        return 7

    assert run_with_watchdog(act, 0.2, "acting") == 7
    with pytest.raises(ZeroDivisionError):
        run_with_watchdog(lambda: 1 // 0, 1, "dividing")
    assert not has_abandoned_thread()


def test_what_does_not_is_left_behind() -> None:
    """What does not is left behind with a sentence that says what it was."""
    end = threading.Event()
    with pytest.raises(Stalled, match="acting: no progress"):
        run_with_watchdog(lambda: end.wait(30), 0.1, "acting")
    assert has_abandoned_thread()
    end.set()


def test_a_signal_leaves_it_behind() -> None:
    """The process then ends without it, and does not wait for the rest of its work."""
    end = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        raise BuildInterrupted("interrupted")

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(BuildInterrupted):
            run_with_watchdog(lambda: end.wait(30), 20, "acting")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert has_abandoned_thread()
    end.set()
