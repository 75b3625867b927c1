"""What becomes of SIGBUS when a mapped file is cut short: an exception, or what the user wants."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import clean_environment

PROGRAM = """
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
        [sys.executable, "-c", PROGRAM, str(path), handler],
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
