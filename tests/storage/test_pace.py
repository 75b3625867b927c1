"""The window of requests: additive increase, multiplicative decrease."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from distcache.storage.pace import QUIET, Window


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 3))))
def test_it_stays_within_its_bounds(events: list[tuple[bool, float]]) -> None:
    """Whatever happens."""
    window, now = Window(8, 4, 16), 0.0
    for slow, seconds in events:
        now += seconds
        if slow:
            window.slow_down(now)
        else:
            window.succeeded()
        assert 4 <= window.size <= 16


def test_requests_that_were_sent_together() -> None:
    """Are slowed down once."""
    window = Window(64)
    window.slow_down(10.0)
    window.slow_down(10.0 + QUIET / 2)
    assert window.size == 32
    window.slow_down(10.0 + QUIET)
    assert window.size == 16


def test_a_window_of_answers() -> None:
    """Makes room for one more request."""
    window = Window(10)
    for _ in range(10):
        window.succeeded()
    assert 10.9 < window.size <= 11
