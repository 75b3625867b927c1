"""Run distcache's command line, and die when so many files have their final names, or are removed.

python -m tests.faults.publisher NAMES REMOVED -- WORDS...
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from distcache.cli.main import main
from distcache.ingest import pieces
from distcache.ranks import workspace as directory

NAMES, REMOVED = map(int, sys.argv[1:3])
removed = 0


def rename(unfinished: str, final: str, original: Any = directory._rename_to_free) -> bool:
    """Give a name, and die if it is the last one."""
    done: bool = original(unfinished, final)
    names = os.listdir(Path(final).parent)
    if sum(not name.startswith(".") for name in names) == NAMES:
        os.kill(os.getpid(), signal.SIGKILL)
    return done


def remove(name: str, place: int, original: Any = directory._remove) -> None:
    """Remove a file that is not needed any more, and die if it is the last one."""
    global removed  # noqa: PLW0603
    original(name, place)
    removed += 1
    if removed == REMOVED:
        os.kill(os.getpid(), signal.SIGKILL)


directory._remove = remove
directory._rename_to_free = rename
pieces.MIN_PIECE_BYTES = 20_000  # type: ignore[misc]
pieces.ROUND_BYTES = 1  # type: ignore[misc]
sys.argv = ["distcache", *sys.argv[4:]]
main()
