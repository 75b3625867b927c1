"""Tables and progress: they fit a terminal, and never are silent for long."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from distcache.cli import show
from distcache.storage.units import counted, size_text
from tests.support.waiting import wait_until

PATHS = [f"/lustre/projects/llm/corpora/v12/tokenized/web-{i:03}" for i in range(3)]


class Terminal(io.StringIO):
    """Standard output of a person."""

    def isatty(self) -> bool:
        """Say that it is one."""
        return True


def shown(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, rows: list[Any]) -> list[str]:
    """Return the lines of a table."""
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("LINES", "25")  # rich reads both of a dumb terminal, or neither
    monkeypatch.setenv("TERM", "dumb")
    names = ("corpus", "samples", "weight")
    show.print_records("Corpora", [dict(zip(names, row, strict=True)) for row in rows])
    return stream.getvalue().splitlines()


def test_a_table_is_no_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long cells go on in the next line, and nothing of them is lost."""
    lines = shown(monkeypatch, Terminal(), [[path, 1_000_000, 0.5] for path in PATHS])
    assert max(map(len, lines)) <= 60
    assert sum("1,000,000" in line for line in lines) == 3
    cells = "".join(line[:38].strip() for line in lines[4:])
    assert cells == "".join(PATHS)


def test_a_pipe_gets_whole_cells_without_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe gets whole cells without padding, however wide, for scripts that look for a path."""
    lines = shown(monkeypatch, io.StringIO(), [["/" + 300 * "x", 3, 1.0], [PATHS[0], 4, 0.5]])
    assert any("/" + 300 * "x" in line for line in lines)
    assert any(PATHS[0] in line for line in lines)
    assert all(line == line.rstrip() for line in lines)


def test_a_long_step_is_not_silent(
    limit: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """A line repeats the phase, although nothing is counted."""
    limit("distcache.cli.show", PLAIN_INTERVAL=0.05)
    with show.make_progress("json") as progress:
        progress.phase("building")
        written = ""

        def has_repeated() -> bool:
            nonlocal written
            written += capsys.readouterr().err
            return written.count("\n") > 1

        wait_until(has_repeated, "a second line")
    events = [json.loads(line) for line in written.splitlines()]
    assert [event["message"] for event in events[:2]] == ["building", "building"]


def test_numbers_and_their_nouns() -> None:
    """Sizes in powers of 1024; one of a thing has no plural."""
    assert [size_text(size) for size in (0, 1023, 1536, 5 << 40)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5 TiB",
    ]
    assert [counted(count, "rank") for count in (0, 1, 2000)] == [
        "0 ranks",
        "1 rank",
        "2,000 ranks",
    ]
