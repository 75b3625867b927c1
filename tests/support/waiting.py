"""Wait for what happens in other threads, processes and on other nodes, with a bound."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

POLL = 0.02  # seconds


def wait_until(
    condition: Callable[[], bool], what: str, limit: float = 60.0, logs: Sequence[Path] = ()
) -> None:
    """Wait for something, for so many seconds.

    Raises
    ------
    TimeoutError
        With what was waited for, and the end of some logs.
    """
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            tails = [
                f"{log}:\n{log.read_text(errors='replace')[-3000:]}" for log in logs if log.exists()
            ]
            raise TimeoutError("\n".join([f"waited {limit:.0f} s for {what}", *tails]))
        time.sleep(POLL)
