"""What Slurm's and the terminal's signals do to a command that can be resumed."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Final

from distcache.errors import BuildInterrupted

__all__ = ["ENDING", "ignore_signals", "interrupt_on_signals"]

# The terminal's, Slurm's at a time limit or a preemption, and those that its --signal is used with.
ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def interrupt_on_signals(advice: str = "run again to resume") -> None:
    """From now on, raise `BuildInterrupted` where the process is asked to end.

    Not before the ranks have joined: in the middle of that, no Python code runs.

    Parameters
    ----------
    advice : str
        What to do then, or what goes on without this process.
    """
    global _advice  # noqa: PLW0603  of the process
    _advice = advice
    for number in ENDING:
        signal.signal(number, _interrupt)


def ignore_signals() -> None:
    """From now on, end without being interrupted again."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


_interrupted = False
_advice = ""


def _interrupt(number: int, _: FrameType | None) -> None:
    global _interrupted  # noqa: PLW0603  a second signal must not hit what the first one has begun
    if _interrupted:
        return
    _interrupted = True
    raise BuildInterrupted(f"interrupted by {signal.Signals(number).name}; {_advice}")
