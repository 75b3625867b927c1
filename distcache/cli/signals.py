"""What Slurm's and the terminal's signals do to a command that can be resumed."""

from __future__ import annotations

import signal
from types import FrameType
from typing import NoReturn

from distcache.errors import BuildInterrupted

__all__ = ["interrupt_on_signals"]


def interrupt_on_signals() -> None:
    """From now on, raise `BuildInterrupted` where the process is asked to end.

    Not before the ranks have joined: in the middle of that, no Python code runs.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)


def _interrupt(number: int, _: FrameType | None) -> NoReturn:
    raise BuildInterrupted(f"interrupted by {signal.Signals(number).name}; run again to resume")
