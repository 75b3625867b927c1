"""Run distcache's command line, and take some seconds before publishing.

python -m tests.faults.slow_build SECONDS WORDS...
"""

from __future__ import annotations

import sys
import time
from typing import Any

from distcache.cli.main import main
from distcache.cli.show import LineProgress

SECONDS = float(sys.argv[1])
sys.argv = ["distcache", *sys.argv[2:]]


def phase(
    self: LineProgress, name: str, total: float = 0, original: Any = LineProgress.phase
) -> None:
    """Pause when everything is built."""
    original(self, name, total)
    if name == "publishing":
        time.sleep(SECONDS)


LineProgress.phase = phase  # type: ignore[method-assign]
main()
