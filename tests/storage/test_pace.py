"""The window of requests: additive increase, multiplicative decrease."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distcache.storage.pace import QUIET_SECONDS, Pace, Window, in_background
from tests.support.waiting import wait_until


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 3))))
def test_it_stays_within_its_bounds(events: list[tuple[bool, float]]) -> None:
    """It stays within its bounds, whatever happens."""
    window, now = Window(8, 4, 16), 0.0
    for slow, seconds in events:
        now += seconds
        if slow:
            window.slow_down(now)
        else:
            window.succeeded()
        assert 4 <= window.size <= 16


def test_requests_that_were_sent_together() -> None:
    """Requests that were sent together are slowed down once."""
    window = Window(64)
    window.slow_down(10.0)
    window.slow_down(10.0 + QUIET_SECONDS / 2)
    assert window.size == 32
    window.slow_down(10.0 + QUIET_SECONDS)
    assert window.size == 16


def test_a_window_of_answers() -> None:
    """A window of answers makes room for one more request."""
    window = Window(10)
    for _ in range(10):
        window.succeeded()
    assert 10.9 < window.size <= 11


def test_a_store_that_is_away() -> None:
    """A store that is away gets one request at a time, and the first answer ends that."""
    window = Window(32, 4, 64)
    window.away()
    window.slow_down(100.0)
    assert window.size == 1
    window.succeeded()
    assert window.size > 32


def test_waiting_ends_at_its_time() -> None:
    """A request that gets no place in time is an error, and holds no place."""
    now = [0.0]
    pace = Pace(Window(1, 1, 1), lambda: now[0])
    with pace.request():
        now[0] = 5.0
        with pytest.raises(TimeoutError), pace.request(5.0):
            pass
    with pace.request(6.0):
        pass


def test_who_waits_goes_first() -> None:
    """Who waits goes first, however many requests for which nobody waits stand in the queue."""
    pace = Pace(Window(1, 1, 1))
    order: list[str] = []

    def ask(name: str) -> None:
        with pace.request():
            order.append(name)

    def ask_ahead() -> None:
        with in_background():
            ask("ahead")

    with pace.request():
        threads = [threading.Thread(target=ask_ahead) for _ in range(5)]
        threads.append(threading.Thread(target=ask, args=("waiting",)))
        for thread in threads:
            thread.start()
        wait_until(lambda: pace._urgent == 1, "who waits")
    for thread in threads:
        thread.join(60)
    assert order == ["waiting", *["ahead"] * 5]
