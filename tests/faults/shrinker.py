"""Run distcache's command line, and cut a corpus's file short at a chosen place.

    python -m tests.faults.shrinker FILE PLACE -- WORDS...

PLACE is the name of a phase, or ``outline``: when the file's header has been read.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from distcache.cli.main import main
from distcache.cli.show import LineProgress
from distcache.corpus import examine

VICTIM, PLACE = sys.argv[1:3]
sys.argv = ["distcache", *sys.argv[4:]]


def shrink() -> None:
    """Cut the file to its first page."""
    if os.stat(VICTIM).st_size > 4096:
        os.truncate(VICTIM, 4096)


def phase(
    self: LineProgress, name: str, total: float = 0, original: Any = LineProgress.phase
) -> None:
    """Shrink when a phase begins."""
    original(self, name, total)
    if name == PLACE:
        shrink()


def run(task: Any, head: Any, original: Any = examine._run) -> Any:
    """Shrink when a mapped index is about to be checked."""
    if PLACE == "outline":
        opened = examine.open_cached

        def open_and_shrink(prefix: str, versions: Any) -> Any:
            idx = opened(prefix, versions)
            shrink()
            return idx

        examine.open_cached = open_and_shrink
    return original(task, head)


LineProgress.phase = phase  # type: ignore[method-assign]
examine._run = run  # type: ignore[assignment]
main()
