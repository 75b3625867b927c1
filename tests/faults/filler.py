"""Run distcache's command line, and fill a disk when a phase begins.

python -m tests.faults.filler PHASE DIRECTORY -- WORDS...
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

from distcache.cli import node
from distcache.cli.main import main
from distcache.ranks.progress import NullProgress

PHASE, DIRECTORY = sys.argv[1], Path(sys.argv[2])


class Filler(NullProgress):
    """A progress that fills the disk."""

    def phase(self, name: str, total: float = 0) -> None:
        """Do so in the chosen phase."""
        if name != PHASE:
            return
        with open(DIRECTORY / "filler", "wb", buffering=0) as stream:
            for size in (1 << 20, 4096, 512):
                try:
                    while True:
                        os.write(stream.fileno(), bytes(size))
                except OSError:
                    pass


@contextlib.contextmanager
def make_filler(*_: Any) -> Any:
    """Yield it, whatever format is asked for."""
    yield Filler()


node.make_progress = make_filler
sys.argv = ["distcache", *sys.argv[4:]]
main()
