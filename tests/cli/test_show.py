"""Tables and progress: they fit a terminal, and never are silent for long."""

from __future__ import annotations

import io
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distcache.cli import show
from distcache.storage.units import counted, size_text

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
    monkeypatch.setenv("TERM", "dumb")
    show.print_table("Corpora", ["corpus", "samples", "weight"], rows)
    return stream.getvalue().splitlines()


def test_a_terminal_names_the_common_directory_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each corpus has one line, and no line is wider than the terminal."""
    lines = shown(monkeypatch, Terminal(), [[path, 1_000_000, 0.5] for path in PATHS])
    assert "corpus: in /lustre/projects/llm/corpora/v12/tokenized/" in lines
    assert [line.split() for line in lines if "web-" in line] == [
        [f"web-{i:03}", "1,000,000", "0.5"] for i in range(3)
    ]
    assert max(map(len, lines)) <= 60


def test_one_long_path_loses_its_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end, which tells it from others, stays."""
    lines = shown(monkeypatch, Terminal(), [["s3://lake/" + 80 * "x" + "/web-7", 3, 1.0]])
    row = next(line for line in lines if "web-7" in line)
    assert row.startswith("  s3://lake/")
    assert len(row) <= 60


def test_a_pipe_gets_whole_cells_without_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe gets whole cells without padding, however wide, for scripts that look for a path."""
    lines = shown(monkeypatch, io.StringIO(), [["/" + 300 * "x", 3, 1.0], [PATHS[0], 4, 0.5]])
    assert any("/" + 300 * "x" in line for line in lines)
    assert any(PATHS[0] in line for line in lines)
    assert all(line == line.rstrip() for line in lines)


@given(st.text(max_size=40), st.integers(12, 30))
def test_shortened_texts_fit(text: str, width: int) -> None:
    """Shortened texts fit, and are whole where they do."""
    short = show._shorten(text, width)
    assert show._width(short) <= width
    assert short == text or show._width(text) > width


def test_what_fits_in_no_table_has_a_line_for_each_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost on a narrow terminal."""
    monkeypatch.setattr("sys.stdout", stream := Terminal())
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("TERM", "dumb")
    show.print_table("Faults", ["file", "what is wrong"], [["/d/web.bin", "no such file, nor x"]])
    assert "what is wrong: no such file, nor x" in stream.getvalue()


def test_sentences_with_paths_are_no_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sentences with paths are no paths: they lose nothing at their beginning."""
    rows = [[f"/d/{name}.bin", f"no such file, nor /d/{name}.idx", 0.0] for name in ("web", "code")]
    lines = shown(monkeypatch, Terminal(), rows)
    assert not any("samples: in" in line for line in lines)


def test_a_long_step_is_not_silent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line repeats the phase, although nothing is counted."""
    monkeypatch.setattr(show, "PLAIN_INTERVAL", 0.05)
    with show.make_progress("json") as progress:
        progress.phase("building")
        time.sleep(0.5)
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
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
