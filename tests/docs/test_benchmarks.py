"""Benchmarks have their places in the laboratory book, and run."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from collections import Counter

import pytest

from benchmarks.__main__ import NAMES
from benchmarks.harness import BOOK, TOP, Figures, Table, markdown

PLACE = re.compile(r"<!-- benchmark (.+) -->\n(?:.*\n)+?<!-- end of (.+) -->\n")


def test_every_table_has_its_place() -> None:
    """Each mark of a benchmark stands once in the laboratory book, which has no other marks."""
    wanted = Counter(
        mark for name in NAMES for mark in importlib.import_module(f"benchmarks.{name}").MARKS
    )
    found = Counter(begin for begin, end in PLACE.findall(BOOK.read_text()) if begin == end)
    assert found == wanted


def test_figures_are_medians_with_their_spread() -> None:
    """Half of the span of all rounds, in percent of the median."""
    found = Figures([{"s": 2.0}, {"s": 4.0}, {"s": 3.0}])
    assert (found["s"], found.said("s"), found.said("s", "ms", 1e-3)) == (
        3,
        "3.00 s ±33 %",
        "3,000 ms ±33 %",
    )
    table = Table("t", ["", "seconds"], [["a", found.said("s")]])
    assert markdown(table) == "|  | seconds |\n| --- | --: |\n| a | 3.00 s ±33 % |"


@pytest.mark.more
def test_one_runs() -> None:
    """From generated corpora to a table, in processes of their own."""
    words = [sys.executable, "-m", "benchmarks", "localizing", "--rounds", "1", "--scale", "0.001"]
    done = subprocess.run(
        [*words, "--json"], cwd=TOP, check=True, capture_output=True, text=True, timeout=200
    )
    table = json.loads(done.stdout)
    assert len(table["rows"]) == 3
    assert "rounds: 1" in table["about"]
