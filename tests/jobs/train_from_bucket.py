"""Train in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.processes import LIMIT, clean_environment


def train(
    cache: str,
    store: Path | None,
    steps: int,
    environment: Mapping[str, str] = {},
    rank: int = 0,
    ranks: int = 1,
    *more: str,
) -> dict[str, Any]:
    """Train as one rank in a separate process, and return what it has found."""
    words = [cache, str(store or ""), str(rank), str(ranks), str(steps), *more]
    done = subprocess.run(
        [sys.executable, "-m", "tests.jobs.bucket_trainer", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
        env=clean_environment(environment),
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
