"""What a run consumed, as `trace`, `report` and `rest` are told: by logs, options, or a number."""

from __future__ import annotations

import dataclasses
import glob
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from distcache.errors import ConfigError
from distcache.ledger.consumed import Consumed
from distcache.ledger.trace import Trace
from distcache.megatron.run_options import options_given, run_of_command
from distcache.megatron.training_log import read_log

TrainingLogOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--log",
        metavar="FILE",
        help="Training log, packed by gzip or not; those of several jobs in their order.",
    ),
]


def consumed_of(
    context: typer.Context,
    logs: Sequence[Path] | None,
    opened: Trace,
    *,
    samples: int | None = None,
    last: int | None = None,
    begin_at: int = 0,
) -> Consumed | None:
    """Return what a run consumed of the split of a cache; None if nothing says it.

    Parameters
    ----------
    context : typer.Context
        Holds the further words: more logs, where a shell has expanded a pattern, and then options
        of Megatron.
    logs : sequence of Path or None
        Logs of training.
    opened : Trace
        The split.
    samples : int or None
        Number of samples, instead of logs.
    last : int or None
        Step before which all that are asked for are.
    begin_at : int
        Samples of training before the first of the cache.

    Raises
    ------
    ConfigError
        If an option or a log cannot be read, or lines contradict one another.
    """
    words = list(context.args)
    paths, expanded = list(logs or []), []
    while paths and words and not words[0].startswith("-"):
        expanded.append(Path(words.pop(0)))
    if expanded:  # those of several --log are in the order of their jobs
        paths = [*paths[:-1], *_by_number([paths[-1], *expanded])]
    if paths:
        given = options_given(words) if words else None
        return _of_logs([path for named in paths for path in _expanded(named)], given)
    options = None
    if words:
        options = run_of_command(words, opened.cache.sequence_length)
    if samples is not None:
        return Consumed.of_number(samples, options)
    if options is None:
        return None
    return Consumed.of_options(options, len(opened) + begin_at, last)


def _expanded(path: Path) -> list[Path]:
    """Return the files that a pattern stands for, which no shell has expanded."""
    if path.exists() or not glob.has_magic(str(path)):
        return [path]
    found = sorted(map(Path, glob.glob(str(path), recursive=True)))
    if not found:
        raise ConfigError(f"--log {path}: matches no file")
    return _by_number(found)


def _of_logs(paths: Sequence[Path], given: Mapping[str, Any] | None) -> Consumed:
    """Return what logs say; one of several may have no line, as of a job that did not start."""
    jobs = {path: read_log(path) for path in dict.fromkeys(paths)}
    empty = [f"{path}: has no line of an iteration" for path, own in jobs.items() if not own]
    if len(empty) == len(jobs):
        raise ConfigError(*(f"{problem}, as Megatron writes them" for problem in empty))
    found = Consumed.of_logs(list(itertools.chain.from_iterable(jobs.values())), given)
    return dataclasses.replace(found, notes=[*empty, *found.notes])


def _by_number(paths: list[Path]) -> list[Path]:
    """Return paths in the order of the numbers in them, if they are in that of a shell's pattern.

    A pattern sorts ``job-10.log`` before ``job-9.log``.
    """
    if paths != sorted(paths):
        return paths
    parts = {path: re.split(r"(\d+)", str(path)) for path in paths}
    return sorted(  # every second part is a number
        paths,
        key=lambda path: [int(p) if n % 2 else p for n, p in enumerate(parts[path])],
    )
