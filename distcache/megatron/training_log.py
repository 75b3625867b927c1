"""The log of a training job of Megatron-LM or Megatron-Bridge: its iterations and its options.

A line of an iteration, as ``training_log`` of ``megatron/training/training.py`` writes it (0.16.1
to 0.19.2), has ``iteration N/ M``, ``consumed samples: X`` and ``global batch size: B``: iteration
N took samples X - B to X of the run. The options are those that ``_print_args`` writes, with dots
between name and value.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec

ITERATION: Final = re.compile(
    r"\biteration\s+(\d+)/\s*\d+\s*\|.*?\bconsumed samples:\s*(\d+)\s*\|"
    r".*?\bglobal batch size:\s*(\d+)\s*\|"
)
ARGUMENT: Final = re.compile(r"(?:^|\s)([a-z][a-z0-9_]*) \.{2,} (\S.*?)\s*$")
LOADED: Final = re.compile(r"loaded checkpoint from .{0,4096}? at iteration\s+(\d{1,18})\b")
MOST_DIGITS: Final = 18
LONGEST: Final = 1 << 16  # characters of a line that are looked at


class LoggedIteration(NamedTuple):
    """An iteration that a log has a line for."""

    iteration: int
    consumed: int  # samples of the run, up to its end
    batch: int  # samples of the iteration


class LoggedJob(msgspec.Struct):
    """What a log says of one job."""

    path: str  # the log, for messages
    begin: int | None = None  # iteration of the checkpoint that it continued
    iterations: list[LoggedIteration] = []
    arguments: dict[str, str] = {}  # values of options, as text, by Megatron's names


def parse_log(path: str, lines: Iterable[str]) -> list[LoggedJob]:
    """Read a training log, which may be of several jobs, one after the other.

    Parameters
    ----------
    path : str
        Path of the log, for messages.
    lines : iterable of str
        Lines of the log.

    Returns
    -------
    list of LoggedJob
        Jobs that have a line of an iteration; the options of a job come before it.
    """
    jobs = [LoggedJob(path)]
    for whole in lines:
        line = whole[:LONGEST]
        if "consumed samples" in line:
            for digits in ITERATION.findall(line):
                if max(map(len, digits)) > MOST_DIGITS:
                    continue
                found = LoggedIteration(*map(int, digits))
                last = jobs[-1].iterations[-1:]
                if last and found.iteration <= last[0].iteration:  # it started anew
                    jobs.append(LoggedJob(path, arguments=jobs[-1].arguments))
                jobs[-1].iterations.append(found)
        elif (loaded := LOADED.search(line)) is not None:
            if jobs[-1].iterations:
                jobs.append(LoggedJob(path, arguments=jobs[-1].arguments))
            jobs[-1].begin = int(loaded[1])
        elif " .." in line and (argument := ARGUMENT.search(line)) is not None:
            if jobs[-1].iterations:
                jobs.append(LoggedJob(path))
            jobs[-1].arguments[argument[1]] = argument[2]
    return [job for job in jobs if job.iterations]


def logged_value(job: LoggedJob, name: str) -> Any:
    """Return the value of a logged option; None if it is none, or was not logged."""
    text = job.arguments.get(name, "None")
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
