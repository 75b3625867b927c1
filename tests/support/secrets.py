"""Marked keys, secrets and tokens of stores, which nothing may show or keep."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

MARK: Final = "MARKED"
PIECE: Final = 1 << 24  # bytes


def places_with_secrets(directory: Path) -> list[str]:
    """Return the files below a directory, and the processes, that show a marked secret."""
    files = [path for path in directory.rglob("*") if path.is_file() and not path.is_symlink()]
    commands = Path("/proc").glob("[0-9]*/cmdline")
    return [str(path) for path in [*files, *commands] if _shows(path)]


def _shows(path: Path) -> bool:
    mark = MARK.encode()
    last = b""
    with contextlib.suppress(OSError), path.open("rb") as stream:  # a process may have ended
        while piece := stream.read(PIECE):
            if mark in last + piece:
                return True
            last = piece[-len(mark) :]
    return False
