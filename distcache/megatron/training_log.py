"""The log of a training job of Megatron-LM or Megatron-Bridge: its iterations and its options.

A line of an iteration, as ``training_log`` of ``megatron/training/training.py`` writes it (0.16.1
to 0.19.2), has ``iteration N/ M``, ``consumed samples: X`` and ``global batch size: B``: iteration
N took samples X - B to X of the run. Forks write ``iteration= N/ M`` and ``consumed_samples= X``.
The options are those that ``_print_args`` writes between two lines of its own, with dots between
name and value.
"""

from __future__ import annotations

import ast
import gzip
import io
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, TextIO

import msgspec

from distcache.errors import ConfigError
from distcache.storage.files import open_regular

ITERATION: Final = re.compile(r"\biteration[ =]\s*(\d{1,18})/\s*\d+\s*$")
CONSUMED: Final = re.compile(r"\s*consumed[ _]samples[:=]\s*(\d{1,18})\s*")
BATCH_SIZE: Final = re.compile(r"\s*global[ _]batch[ _]size[:=]\s*(\d{1,18})\s*")
OPTIONS: Final = re.compile(r"-{3} (end of )?arguments -{3}")
NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
LOADED: Final = "loaded checkpoint from "
AT: Final = re.compile(r" at iteration\s+(\d{1,18})\b")
GZIP: Final = b"\x1f\x8b"
MAX_LINE_CHARACTERS: Final = 1 << 16  # characters of a line that are looked at


class LoggedIteration(NamedTuple):
    """An iteration that a log has a line for."""

    iteration: int
    consumed: int  # samples of the run, up to its end
    batch: int  # samples of the iteration
    line: int = 0  # line of the log, from 1, for messages


class LoggedJob(msgspec.Struct):
    """What a log says of one job."""

    path: str  # the log, for messages
    loaded: list[int] = []  # iterations of the checkpoints that it loaded; one may be a teacher's
    iterations: list[LoggedIteration] = []
    arguments: dict[str, str] = {}  # values of options, as text, by Megatron's names
    again: bool = False  # whether its lines alone say that it is another job than the previous one


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
    for number, line in enumerate(lines, 1):
        if "consumed" in line and "iteration" in line:
            for found in _iterations_of(line, number):
                _add(jobs, found)
        elif (mark := OPTIONS.search(line)) is not None:
            in_options = not mark[1]
            if in_options and jobs[-1].iterations:
                jobs.append(LoggedJob(path))
        elif LOADED in line and (at := AT.search(line, line.index(LOADED))) is not None:
            if jobs[-1].iterations:
                jobs.append(LoggedJob(path, arguments=jobs[-1].arguments))
            jobs[-1].loaded.append(int(at[1]))
        elif in_options:
            before, dots, after = line.partition(" ..")
            name = before.rpartition(" ")[2]
            if dots and NAME.fullmatch(name):
                jobs[-1].arguments[name] = after.lstrip(".").strip()
    return [job for job in jobs if job.iterations]


def read_log(path: Path) -> list[LoggedJob]:
    """Read a file as `parse_log` does; it may be packed by gzip.

    Raises
    ------
    ConfigError
        If it cannot be read.
    """
    if path.is_dir():
        raise ConfigError(f"{path}: is a directory: give its logs, as --log '{path}/*.log'")
    try:
        with os.fdopen(open_regular(path), "rb") as raw:
            packed = raw.read(2) == GZIP
            raw.seek(0)
            with io.TextIOWrapper(
                gzip.open(raw) if packed else raw, encoding="utf-8", errors="replace"
            ) as text:
                return parse_log(str(path), _lines(text))
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be read: {reason}") from error


def _lines(text: TextIO) -> Iterator[str]:
    """Yield the lines of a log, of one that is too long the first part."""
    while line := text.readline(MAX_LINE_CHARACTERS):
        yield line
        while line and not line.endswith("\n"):
            line = text.readline(MAX_LINE_CHARACTERS)


def _add(jobs: list[LoggedJob], found: LoggedIteration) -> None:
    """Add an iteration to the last job, or to one that begins with it."""
    last = jobs[-1].iterations[-1:]
    if last and found[:3] == last[0][:3]:  # the same line twice
        return
    if last and found.iteration <= last[0].iteration:  # it started anew
        jobs.append(LoggedJob(jobs[-1].path, arguments=jobs[-1].arguments, again=True))
    jobs[-1].iterations.append(found)


def _iterations_of(line: str, number: int) -> Iterator[LoggedIteration]:
    """Yield the iterations that a line is of: the output of two may be in one."""
    iteration = consumed = batch = None
    for part in line.split("|")[:-1]:
        if (found := ITERATION.search(part)) is not None:
            iteration, consumed, batch = int(found[1]), None, None
        elif (found := CONSUMED.fullmatch(part)) is not None:
            consumed = int(found[1])
        elif (found := BATCH_SIZE.fullmatch(part)) is not None:
            batch = int(found[1])
        if iteration is not None and consumed is not None and batch is not None:
            yield LoggedIteration(iteration, consumed, batch, number)
            iteration = None


def logged_value(job: LoggedJob, name: str) -> Any:
    """Return the value of a logged option; None if it is none, or was not logged."""
    text = job.arguments.get(name, "None")
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
