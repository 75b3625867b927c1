"""What the machine gives the kernels: instructions, and mappings of files that are cut short."""

from __future__ import annotations

import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import clean_environment

INSTRUCTIONS = "from distcache.kernels import instructions; print(instructions())"
LEVELS = ("baseline", "avx2", "avx512")


def instructions_of(level: str | None) -> subprocess.CompletedProcess[str]:
    """Return what a process with that variable says, or without it."""
    environment = clean_environment({"DISTCACHE_INSTRUCTIONS": level or ""})
    if level is None:  # also where these tests run with the variable
        del environment["DISTCACHE_INSTRUCTIONS"]
    return subprocess.run(
        [sys.executable, "-c", INSTRUCTIONS],
        env=environment,
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


CUT_SHORT = """
import os, signal, sys
from distcache.kernels import Mapping

if sys.argv[2] == "another":
    signal.signal(signal.SIGBUS, lambda *_: print("the other handler", flush=True))
descriptor = os.open(sys.argv[1], os.O_RDWR)
mapping = Mapping(descriptor, 1 << 16)
view = memoryview(mapping)
os.ftruncate(descriptor, 0)
print(view[40_000], mapping.intact, flush=True)
"""


def cut_short(path: Path, handler: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Read a mapped file that was cut short, in a process with these variables."""
    path.write_bytes(bytes(1 << 16))
    return subprocess.run(
        [sys.executable, "-c", CUT_SHORT, str(path), handler],
        env=clean_environment(more),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("handler", ["none", "another"])
def test_a_file_that_was_cut_short_reads_as_zeros(tmp_path: Path, handler: str) -> None:
    """The mapping is marked, whoever else handles the signal."""
    done = cut_short(tmp_path / "x", handler)
    assert (done.stdout, done.returncode) == ("0 False\n", 0), done.stderr


def test_the_handler_can_be_switched_off(tmp_path: Path) -> None:
    """The signal then ends the process, as it does without distcache."""
    done = cut_short(tmp_path / "x", "none", DISTCACHE_SIGBUS="off")
    assert done.returncode == -signal.SIGBUS


def test_another_value_is_refused(tmp_path: Path) -> None:
    """One that is meant to switch the handler off must not leave it on."""
    done = cut_short(tmp_path / "x", "none", DISTCACHE_SIGBUS="0")
    assert "DISTCACHE_SIGBUS='0': expected on or off" in done.stderr
