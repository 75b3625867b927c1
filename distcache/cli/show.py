"""How the command line shows things: tables for people, JSON for scripts, progress for both."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from distcache.errors import DistcacheError
from distcache.ranks.progress import NullProgress, Progress

PLAIN_INTERVAL = 10.0
UNLIMITED = 100_000  # characters of a line, of what is not a terminal
# A log that is full or gone must not end a build.
LOG_MAY_FAIL = contextlib.suppress(OSError, ValueError)
LogFormat = Literal["auto", "bar", "plain", "json", "none"]
"""How progress is written to standard error."""


_is_written = False  # whether this command has written a document


def note_document() -> None:
    """Note that this command writes a document to standard output: no error follows it there."""
    global _is_written  # noqa: PLW0603  of the process
    _is_written = True


def print_json(document: Any) -> None:
    """Write a document, which may have structs, to standard output."""
    note_document()
    print(json.dumps(msgspec.to_builtins(document), indent=2))  # noqa: T201


def print_json_error(error: DistcacheError) -> None:
    """Write an error to standard output, unless a document was written that says what is wrong."""
    if not _is_written:
        kind, code = type(error).__name__, error.exit_code
        print_json({"error": {"kind": kind, "exit_code": code, "problems": error.problems}})


def print_result(rank: int, result: msgspec.Struct, lines: Sequence[str], *, as_json: bool) -> None:
    """Write the result of a command to standard output, on rank 0: as JSON, or some lines."""
    if rank == 0 and as_json:
        print_json(result)
    elif rank == 0:
        print(*lines, sep="\n")  # noqa: T201


def print_records(title: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Write a table of rows that have the same names to standard output.

    On a terminal it is no wider than that: cells that are too long go on in the next line.
    """
    from rich import box  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    if sys.stdout is None:
        return
    console = Console(width=None if sys.stdout.isatty() else UNLIMITED)
    table = Table(box=box.SIMPLE_HEAD, safe_box=True)
    for name in rows[0] if rows else ():
        numeric = all(isinstance(row[name], int | float) for row in rows)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row.values()))
    with console.capture() as captured:
        if title:
            console.print(title, markup=False, highlight=False, soft_wrap=True)
        if rows:
            console.print(table)
    for line in captured.get().splitlines():
        print(line.rstrip())  # noqa: T201


def _cell(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        return "" if value is None else str(value)
    return f"{value:,}"


@contextlib.contextmanager
def make_progress(log_format: LogFormat, rank: int = 0) -> Iterator[Progress]:
    """Show the progress of a rank; other ranks than 0 show none."""
    if log_format == "auto" and sys.stderr is not None:
        log_format = "bar" if sys.stderr.isatty() else "plain"
    if rank or log_format == "none" or sys.stderr is None:
        yield NullProgress()
    elif log_format == "bar":
        with contextlib.closing(BarProgress()) as bar:
            yield bar
    else:
        with contextlib.closing(LineProgress(as_json=log_format == "json")) as lines:
            yield lines


class LineProgress:
    """One line per phase, and one every ten seconds within it, with the seconds since the start.

    Parameters
    ----------
    as_json : bool
        Whether each line is a JSON object.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._begin = self._last = time.monotonic()
        self._phase, self._total, self._done = "", 0.0, 0.0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        # One large section is one step: a line says that it continues.
        threading.Thread(target=self._repeat, name="progress", daemon=True).start()

    def _repeat(self) -> None:
        while not self._ended.wait(PLAIN_INTERVAL / 4):
            self.advance(0)

    def close(self) -> None:
        """Write nothing more by itself."""
        self._ended.set()

    def phase(self, name: str, total: float = 0) -> None:
        """Write that a phase begins."""
        with self._lock:
            self._phase, self._total, self._done = name, total, 0.0
            self._write(name, None)

    def advance(self, amount: float) -> None:
        """Write how far the phase is, if ten seconds have passed since the last line."""
        with self._lock:
            self._done += amount
            if time.monotonic() - self._last >= PLAIN_INTERVAL and self._phase:
                share = min(self._done / self._total, 1.0) if self._total else None
                self._write(self._phase, share)

    def note(self, message: str) -> None:
        """Write a message."""
        with self._lock:
            self._write(message, None)

    def _write(self, message: str, fraction: float | None) -> None:
        self._last = time.monotonic()
        elapsed = self._last - self._begin
        if self._as_json:
            entry = {"elapsed": round(elapsed, 3), "message": message, "fraction": fraction}
            line = json.dumps(entry)
        else:
            share = "" if fraction is None else f" {fraction:.0%}"
            line = f"[{elapsed:8.1f} s] {message}{share}"
        with LOG_MAY_FAIL:
            print(line, file=sys.stderr, flush=True)  # noqa: T201


class BarProgress:
    """A bar on the terminal."""

    def __init__(self) -> None:
        from rich.console import Console  # noqa: PLC0415
        from rich.progress import (  # noqa: PLC0415
            BarColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as RichProgress  # noqa: PLC0415

        self._console = Console(stderr=True)
        self._bar = RichProgress(
            TextColumn("{task.description:24}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            TextColumn("so far,"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task("starting", total=None)
        with LOG_MAY_FAIL:
            self._bar.start()

    def phase(self, name: str, total: float = 0) -> None:
        """Restart the bar for a phase."""
        with LOG_MAY_FAIL:
            self._bar.reset(self._task, description=name, total=total or None)

    def advance(self, amount: float) -> None:
        """Move the bar."""
        self._bar.advance(self._task, amount)

    def note(self, message: str) -> None:
        """Write a message above the bar."""
        with LOG_MAY_FAIL:
            self._bar.console.print(message, markup=False)

    def close(self) -> None:
        """Take the bar away, and show the cursor."""
        with LOG_MAY_FAIL:
            self._bar.stop()
