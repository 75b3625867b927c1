"""How the command line shows things: tables for people, JSON for scripts, progress for both."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from distcache.ranks.progress import NullProgress, Progress

PLAIN_INTERVAL = 10.0
UNLIMITED = 100_000  # characters of a line, of what is not a terminal
LEAST_CELL = 12  # characters
# A log that is full or gone must not end a build.
LOG_MAY_FAIL = contextlib.suppress(OSError, ValueError)
LogFormat = Literal["auto", "bar", "plain", "json", "none"]
"""How progress is written to standard error."""


def print_json(document: Any) -> None:
    """Write a document, which may have structs, to standard output."""
    print(json.dumps(msgspec.to_builtins(document), indent=2))  # noqa: T201


def print_result(rank: int, result: msgspec.Struct, lines: Sequence[str], *, as_json: bool) -> None:
    """Write the result of a command to standard output, on rank 0: as JSON, or some lines."""
    if rank == 0 and as_json:
        print_json(result)
    elif rank == 0:
        print(*lines, sep="\n")  # noqa: T201


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write a table to standard output, on a terminal no wider than it is.

    Where it would be wider, the directory that all paths of a column are in is named once, and long
    cells lose their middle.
    """
    from rich import box  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    if sys.stdout is None:
        return
    console = Console(width=None if sys.stdout.isatty() else UNLIMITED)
    cells = [[_cell(row[place]) for row in rows] for place in range(len(columns))]
    whole = list(cells)
    notes = _fit(columns, cells, console.width)
    if _excess(columns, cells, console.width) > 0:
        _print_records(title, columns, whole)
        return
    table = Table(box=box.SIMPLE_HEAD, safe_box=True)
    for place, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[place], int | float) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in zip(*cells, strict=True):
        table.add_row(*map(Text, row))
    with console.capture() as captured:
        for line in filter(None, [title, *notes]):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        console.print(table)
    for line in captured.get().splitlines():
        print(line.rstrip())  # noqa: T201


def _print_records(title: str, columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """Write a line for each cell, where no table fits."""
    lines = [title] if title else []
    for row in zip(*cells, strict=True):
        lines += ["", *(f"{name}: {cell}" for name, cell in zip(columns, row, strict=True) if cell)]
    print(*lines, sep="\n")  # noqa: T201


def _fit(columns: Sequence[str], cells: list[list[str]], width: int) -> list[str]:
    """Shorten cells until a table is no wider; return what the reader has to know of it."""
    notes: list[str] = []
    if _excess(columns, cells, width) > 0:
        for place, column in enumerate(cells):
            common = _common_directory(column)
            if common:
                notes.append(f"{columns[place]}: in {common}")
                cells[place] = [cell.removeprefix(common) for cell in column]
    while (excess := _excess(columns, cells, width)) > 0:
        widths = [max(map(_width, column), default=0) for column in cells]
        place = widths.index(max(widths))
        room = max(widths[place] - excess, _width(columns[place]), LEAST_CELL)
        if room >= widths[place]:
            break  # numbers and headings alone are too wide
        cells[place] = [_shorten(cell, room) for cell in cells[place]]
    return notes


def _excess(columns: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> int:
    """Return how much wider than so many characters a table is."""
    pairs = zip(columns, cells, strict=True)
    widths = (max(map(_width, [*column, name])) for name, column in pairs)
    return sum(widths) + 3 * len(columns) + 2 - width


def _common_directory(cells: Sequence[str]) -> str:
    """Return the directory that all cells are in, with its slash; empty if there is none."""
    if len(cells) < 2 or not all("/" in cell and " " not in cell for cell in cells):
        return ""
    try:
        common = os.path.commonpath([os.path.dirname(cell) for cell in cells])  # noqa: PTH120
    except ValueError:  # absolute and relative paths
        return ""
    directory = common.rstrip("/") + "/"
    return directory if common and all(cell.startswith(directory) for cell in cells) else ""


def _shorten(text: str, width: int) -> str:
    """Return a text of at most so many columns; what it loses is in its middle."""
    from rich.cells import set_cell_size  # noqa: PLC0415

    if _width(text) <= width:
        return text
    head = (width - 1) // 2
    begin, end = set_cell_size(text, head), set_cell_size(text[::-1], width - 1 - head)[::-1]
    return f"{begin}~{end}"


def _width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    from rich.cells import cell_len as columns_of  # noqa: PLC0415

    return columns_of(text)


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
