"""What is watched is abandoned when nothing moves; the time limits, and one factor for all."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from types import FrameType

import msgspec
import pytest

from distcache.errors import BuildInterrupted, ConfigError
from distcache.storage import watchdog
from distcache.storage.timeouts import SCALE, TimeLimits, limits
from distcache.storage.watchdog import Stalled, has_abandoned_thread, run_with_watchdog, tick


@pytest.fixture(autouse=True)
def nothing_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process."""
    monkeypatch.setattr(watchdog, "_stuck", False)


def test_what_moves_may_take_long() -> None:
    """What moves may take long, and its result, or its error, is that of the action."""

    def act() -> int:
        for _ in range(8):
            time.sleep(0.4)
            tick()
        return 7

    assert run_with_watchdog(act, 3, "acting") == 7
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


def test_what_moved_once_has_the_limit_and_not_twice_that() -> None:
    """The time since it moved last decides."""
    end = threading.Event()

    def act() -> None:
        time.sleep(0.5)
        tick()
        end.wait(60)

    begin = time.monotonic()
    with pytest.raises(Stalled, match="acting: no progress for 5 s"):
        run_with_watchdog(act, 5, "acting")
    assert time.monotonic() - begin < 9.5  # 10 when it looked once for each limit
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


OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


def test_the_documentation_has_those_that_a_user_meets() -> None:
    """Each with the value that it has; waits of a minute or more are what a user notices."""
    section = OPERATIONS.read_text().partition("## Time limits")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| `")]
    found = {row[1].strip().strip("`"): float(row[2]) for row in rows}
    every = msgspec.structs.asdict(TimeLimits())
    assert found == {name: every[name] for name in found}
    rare = {"leftover", "visible", "fetcher_start"}
    assert found.keys() == {name for name, value in every.items() if value >= 60} - rare


def test_one_variable_scales_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them."""
    monkeypatch.setenv(SCALE, "0.5")
    limits.cache_clear()
    try:
        scaled, plain = msgspec.structs.asdict(limits()), msgspec.structs.asdict(TimeLimits())
        assert scaled == {name: value / 2 for name, value in plain.items()}
    finally:
        limits.cache_clear()


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "inf", "1e12", "two"])
def test_what_is_no_factor(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no factor is refused with the variable's name."""
    monkeypatch.setenv(SCALE, text)
    limits.cache_clear()
    try:
        with pytest.raises(ConfigError, match=SCALE):
            limits()
    finally:
        limits.cache_clear()
