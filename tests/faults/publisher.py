"""Run distcache's command line, and die when so many corpus files have got their final names.

python -m tests.faults.publisher COUNT -- WORDS...
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from distcache.cli.main import main
from distcache.ingest import pieces

COUNT = int(sys.argv[1])


def link(source: Any, target: Any, original: Any = os.link, **options: Any) -> None:
    """Give a name, and die if it is the last one."""
    original(source, target, **options)
    names = os.listdir(Path(target).parent)
    if sum(not name.startswith(".") for name in names) == COUNT:
        os.kill(os.getpid(), signal.SIGKILL)


os.link = link  # type: ignore[assignment]
pieces.SMALLEST = 20_000  # type: ignore[misc]
sys.argv = ["distcache", *sys.argv[3:]]
main()
