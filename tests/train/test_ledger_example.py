"""The example of docs/ledger.md runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.ledger.runs import build_numbered
from tests.support.processes import LIMIT, clean_environment

PAGE = Path(__file__).parents[2] / "docs/ledger.md"


def test_losses_are_joined_with_documents(tmp_path: Path) -> None:
    """The script prints the worst positions with their documents."""
    (script,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    path = build_numbered(tmp_path)
    os.symlink(path, tmp_path / "pretrain.h5")
    (tmp_path / "worst.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "worst.py"],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 10
    assert all("/corpora/" in line for line in lines)
