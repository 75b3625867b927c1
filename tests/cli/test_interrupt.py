"""Ctrl-C at a terminal: a sane terminal, and what continues without it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.caches import build_here
from tests.processes import DISTCACHE
from tests.terminal import interrupt, require_sane


def test_waiting_for_a_cache(tmp_path: Path) -> None:
    """Nothing continues, and nothing was lost."""
    code, shown = interrupt(["ready", tmp_path / "c.h5", "--wait", "100"], b"not started")
    assert code == 8
    require_sane(shown)


@pytest.mark.parametrize("command", ["build", "localize"])
def test_waiting_for_another(command: str, blend_config: dict[str, Any], tmp_path: Path) -> None:
    """Says that running it again continues."""
    (tmp_path / "c.json").write_text(json.dumps(blend_config))
    if command == "build":
        words = ["build", tmp_path / "c.json", "-o", tmp_path / "shared", "--name", "c"]
        locked, seen = tmp_path / "shared" / ".c.h5.building" / "lock", b"waiting for"
        locked.parent.mkdir(parents=True)
    else:
        cache = build_here(blend_config, tmp_path, "c").path
        words = ["localize", cache, "--to", tmp_path / "local"]
        done = subprocess.run([DISTCACHE, *words], capture_output=True, check=True)
        assert done.returncode == 0
        locked, seen = tmp_path / "local" / "lock", b"waiting"
    with subprocess.Popen(["flock", "--no-fork", str(locked), "sleep", "100"]) as holder:
        try:
            code, shown = interrupt(words, seen)
        finally:
            holder.kill()
    assert code == 8
    assert b"again" in shown
    require_sane(shown)
