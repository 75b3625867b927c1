"""The log of a training job of Megatron-LM or Megatron-Bridge: its iterations and its options.

A line of an iteration, as ``training_log`` of ``megatron/training/training.py`` writes it (0.16.1
to 0.19.2), has ``iteration N/ M``, ``consumed samples: X`` and ``global batch size: B``: iteration
N took samples X - B to X of the run. The options are those that ``_print_args`` writes between two
lines of its own, with dots between name and value.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

ITERATION: Final = re.compile(r"\biteration\s+(\d{1,18})/\s*\d+\s*$")
NUMBER: Final = re.compile(r"\s*(consumed samples|global batch size):\s*(\d{1,18})\s*")
OPTIONS: Final = re.compile(r"-{3} (end of )?arguments -{3}")
NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
LOADED: Final = "loaded checkpoint from "
AT: Final = re.compile(r" at iteration\s+(\d{1,18})\b")
MAX_LINE_CHARACTERS: Final = 1 << 16  # characters of a line that are looked at


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
    jobs, in_options = [LoggedJob(path)], False
    for whole in lines:
        line = whole[:MAX_LINE_CHARACTERS]
        if "consumed samples" in line:
            for found in _iterations_of(line):
                _add(jobs, found)
        elif (mark := OPTIONS.search(line)) is not None:
            in_options = not mark[1]
            if in_options and jobs[-1].iterations:
                jobs.append(LoggedJob(path))
        elif LOADED in line and (at := AT.search(line, line.index(LOADED))) is not None:
            if jobs[-1].iterations:
                jobs.append(LoggedJob(path, arguments=jobs[-1].arguments))
            jobs[-1].begin = int(at[1])
        elif in_options:
            before, dots, after = line.partition(" ..")
            name = before.rpartition(" ")[2]
            if dots and NAME.fullmatch(name):
                jobs[-1].arguments[name] = after.lstrip(".").strip()
    return [job for job in jobs if job.iterations]


def _add(jobs: list[LoggedJob], found: LoggedIteration) -> None:
    """Add an iteration to the last job, or to one that begins with it."""
    last = jobs[-1].iterations[-1:]
    if [found] == last:  # the same line twice
        return
    if last and found.iteration <= last[0].iteration:  # it started anew
        jobs.append(LoggedJob(jobs[-1].path, arguments=jobs[-1].arguments))
    jobs[-1].iterations.append(found)


def _iterations_of(line: str) -> Iterator[LoggedIteration]:
    """Yield the iterations that a line is of: the output of two may be in one."""
    iteration, values = None, dict[str, int]()
    for part in line.split("|")[:-1]:
        if (found := ITERATION.search(part)) is not None:
            iteration, values = int(found[1]), {}
        elif (number := NUMBER.fullmatch(part)) is not None:
            values[number[1]] = int(number[2])
        if iteration is not None and len(values) == 2:
            yield LoggedIteration(
                iteration, values["consumed samples"], values["global batch size"]
            )
            iteration = None


def logged_value(job: LoggedJob, name: str) -> Any:
    """Return the value of a logged option; None if it is none, or was not logged."""
    text = job.arguments.get(name, "None")
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
