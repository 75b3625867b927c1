"""Ctrl-C at a terminal: a sane terminal, and what goes on without it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.caches import build_here
from tests.processes import DISTCACHE, clean_environment

# A terminal of its own, whose keys are this program's standard input.
TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
HIDDEN, SHOWN = b"\x1b[?25l", b"\x1b[?25h"


def interrupt(words: list[Any], seen: bytes) -> tuple[int, bytes]:
    """Press Ctrl-C when something has been seen; return the exit code and all that was shown."""
    process = subprocess.Popen(
        [sys.executable, "-c", TERMINAL, DISTCACHE, *map(str, words)],
        # Wide: what is waited for must not be broken over two lines where a path is long.
        env=clean_environment({"TERM": "xterm", "COLUMNS": "400"}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    shown = b""
    while seen not in shown:
        more = process.stdout.read1()
        assert more, shown
        shown += more
    process.stdin.write(b"\x03")
    process.stdin.flush()
    rest, _ = process.communicate(timeout=60)
    return process.returncode, shown + rest


def require_sane(shown: bytes) -> None:
    """No traceback, and the cursor is back."""
    assert b"Traceback" not in shown
    assert shown.rfind(SHOWN) >= shown.rfind(HIDDEN)


def test_waiting_for_a_cache(tmp_path: Path) -> None:
    """Nothing goes on, and nothing was lost."""
    code, shown = interrupt(["ready", tmp_path / "c.h5", "--wait", "100"], b"not started")
    assert code == 8
    require_sane(shown)


@pytest.mark.parametrize("command", ["build", "localize"])
def test_waiting_for_another(command: str, blend_config: dict[str, Any], tmp_path: Path) -> None:
    """Says that running it again goes on."""
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
