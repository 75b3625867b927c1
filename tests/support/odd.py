"""Compile what makes a filesystem odd, and say how a process gets it."""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("odd_filesystem.c")


def compile_odd(directory: Path) -> Path:
    """Compile the library that is preloaded."""
    library = directory / "odd.so"
    words = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(words, check=True, timeout=120)
    return library


def odd(library: Path, words: str) -> dict[str, str]:
    """Return the variables of a process whose filesystem is odd."""
    return {"LD_PRELOAD": str(library), "ODD": words}
