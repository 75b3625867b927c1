"""One variable says which instructions all kernels may use."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.processes import clean_environment

PROGRAM = "from distcache.kernels import instructions; print(instructions())"
LEVELS = ("baseline", "avx2", "avx512")


def instructions_of(level: str | None) -> subprocess.CompletedProcess[str]:
    """Return what a process with that variable says."""
    more = {} if level is None else {"DISTCACHE_INSTRUCTIONS": level}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=clean_environment(more),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("level", ["AVX2", "sse", "avx1024", "0"])
def test_what_is_no_level(level: str) -> None:
    """Is refused, and not treated as the best."""
    found = instructions_of(level)
    assert found.returncode != 0
    assert f"DISTCACHE_INSTRUCTIONS={level!r}: expected" in found.stderr


@pytest.mark.parametrize("level", LEVELS)
def test_no_more_than_asked_for(level: str) -> None:
    """Nor more than the processor has."""
    best = instructions_of(None).stdout.strip()
    assert best in LEVELS
    found = instructions_of(level).stdout.strip()
    assert LEVELS.index(found) == min(LEVELS.index(level), LEVELS.index(best))
