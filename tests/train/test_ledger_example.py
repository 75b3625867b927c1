"""The examples of docs/ledger.md run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.ledger.runs import build_numbered
from tests.support.processes import LIMIT, clean_environment, start

PAGE = Path(__file__).parents[2] / "docs/ledger.md"


def run(number: int, directory: Path) -> list[str]:
    """Run the script of a number in a directory, and return its lines."""
    scripts = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(scripts) == 2
    (directory / "script.py").write_text(scripts[number])
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=directory,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_losses_are_joined_with_documents(tmp_path: Path) -> None:
    """The script prints the worst positions with their documents."""
    path = build_numbered(tmp_path)
    os.symlink(path, tmp_path / "pretrain.h5")
    lines = run(0, tmp_path)
    assert len(lines) == 10
    assert all("/corpora/" in line for line in lines)


def test_two_tables_say_which_samples_differ(tmp_path: Path) -> None:
    """The script prints the first positions that only one table has."""
    path = build_numbered(tmp_path)
    for name, positions in (("a", "3:40"), ("b", "13:40")):
        words = ["trace", path, "--positions", positions, "-o", tmp_path / f"{name}.parquet"]
        done = start(words)
        assert done.returncode == 0, done.stderr
    assert run(1, tmp_path) == [str(list(range(3, 13)))]
