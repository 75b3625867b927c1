"""What the documentation promises: its commands run, its output is what they print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.processes import LIMIT, clean_environment

pytestmark = pytest.mark.slow

DOCS: Final = Path(__file__).parents[2] / "docs"
BLOCK: Final = re.compile(r"(?:Save as `([\w.]+)`[^`]*)?```(\w+)\n(.*?)```", re.DOTALL)


def words(text: str) -> str:
    """Return a text without what a table puts between its words."""
    return " ".join(text.split())


def test_the_quick_start(tmp_path: Path) -> None:
    """The quick start is what a new user gets, block by block."""
    page = (DOCS / "quickstart.md").read_text()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**clean_environment(), "PATH": path, "COLUMNS": "200"}
    said, shown = "", 0
    for name, kind, text in BLOCK.findall(page):
        if name:
            (tmp_path / name).write_text(text)
        elif kind == "text":
            for line in text.splitlines():
                assert words(line) in words(said), said
                shown += 1
        elif "pip install" not in text:
            done = subprocess.run(
                ["sh", "-ec", text],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=LIMIT,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            said = done.stdout
    assert shown == 15
    assert len(list((tmp_path / "megatron-cache").iterdir())) > 30
