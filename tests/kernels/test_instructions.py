"""One variable says which instructions all kernels may use."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import clean_environment

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
    """What is no level is refused, and not treated as the best."""
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


def test_what_the_processor_has() -> None:
    """It is found, as the kernel lists it, whatever the compiler's runtime knows of processors."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((set(line.split()) for line in lines if line.startswith("flags")), set())
    if platform.machine() != "x86_64":  # an emulator shows those of its host
        flags = set()
    has_avx2 = {"avx2", "fma", "bmi1", "bmi2"} <= flags
    has_avx512 = has_avx2 and {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags
    assert instructions_of(None).stdout.strip() == LEVELS[has_avx2 + has_avx512]
