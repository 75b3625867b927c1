"""Commands at a terminal, and its Ctrl-C."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence

from tests.support.processes import DISTCACHE, clean_environment

# A terminal of its own, whose keys are this program's standard input.
TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
HIDDEN, SHOWN = b"\x1b[?25l", b"\x1b[?25h"


def interrupt(
    words: Sequence[object], seen: bytes, env: Mapping[str, str] | None = None
) -> tuple[int, bytes]:
    """Press Ctrl-C when something has been seen; return the exit code and all that was shown."""
    process = subprocess.Popen(
        [sys.executable, "-c", TERMINAL, DISTCACHE, *map(str, words)],
        # Wide: what is waited for must not be broken over two lines where a path is long.
        env={**(env or clean_environment()), "TERM": "xterm", "COLUMNS": "400"},
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
