"""A signal is answered where our code runs: never within a library, and at the latest soon."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from distcache.errors import BuildInterrupted
from distcache.ingest.tokenizers.tokenizer import refusing
from distcache.storage import interruption
from distcache.storage.interruption import interrupt, require_uninterrupted
from tests.support.processes import LIMIT, clean_environment
from tests.support.waiting import wait_until

# Installs the handlers as a command does, then calls a library from a module of the command line.
COMMAND = """
import sys, types
from distcache.cli.common import interrupt_on_signals
from distcache.storage.interruption import interruption
import library
interrupt_on_signals("run again")
command = types.ModuleType("distcache.cli.command")
command.library = library
exec(sys.argv[1], command.__dict__)
try:
    print("begins", flush=True)
    command.run()
except BaseException as error:
    error = interruption() or error
    print("interrupted:", error)
    sys.exit(error.exit_code)
"""
LIBRARY = """
import time

def lose(seconds):
    end = time.monotonic() + seconds
    try:
        open("inside", "w").close()
        while time.monotonic() < end:
            pass
    except BaseException:
        raise RuntimeError("something else") from None
"""


@pytest.fixture
def libraries(tmp_path: Path) -> Path:
    """A directory with the library."""
    (tmp_path / "library.py").write_text(LIBRARY)
    return tmp_path


def begin(libraries: Path, code: str) -> subprocess.Popen[str]:
    """Start a process, and return it when it has begun."""
    environment = clean_environment()
    environment["PYTHONPATH"] += f":{libraries}"
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=libraries,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begins\n"
    time.sleep(0.1)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_library_is_not_interrupted(libraries: Path, number: int) -> None:
    """It makes something else of an exception; the signal counts as soon as it returns."""
    code = (
        "from distcache.storage.watchdog import tick\n"
        "def run():\n    while True:\n        library.lose(0.3); tick()\n"
    )
    process = begin(libraries, code)
    process.send_signal(number)
    text, errors = process.communicate(timeout=LIMIT)
    assert (process.returncode, errors) == (8, "")
    assert f"interrupted by {signal.Signals(number).name}; run again" in text


def test_a_library_that_does_not_return(libraries: Path) -> None:
    """It is interrupted nevertheless, after a while."""
    process = begin(libraries, "def run():\n    library.lose(60)\n")
    wait_until((libraries / "inside").exists, "the library")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=LIMIT)
    assert process.returncode == 8


def test_waiting_is_interrupted(libraries: Path) -> None:
    """Waiting is interrupted in our own code, whatever of Python it waits by."""
    code = "import threading\ndef run():\n    threading.Event().wait()\n"
    process = begin(libraries, code)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=LIMIT)
    assert process.returncode == 8


def test_a_cleanup_that_takes_too_long(libraries: Path) -> None:
    """The process ends without it, with the message and the exit code."""
    code = (
        "import time\ndef run():\n    try:\n        time.sleep(60)\n"
        "    finally:\n        time.sleep(60)\n"
    )
    process = begin(libraries, code)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 8
    assert "distcache: interrupted by SIGTERM; run again" in errors


def test_a_second_signal(libraries: Path) -> None:
    """A second signal ends the process at once."""
    code = (
        "import time\ndef run():\n    try:\n        time.sleep(60)\n"
        "    finally:\n        open('cleaning', 'w').close(); time.sleep(60)\n"
    )
    process = begin(libraries, code)
    process.send_signal(signal.SIGINT)
    while not (libraries / "cleaning").exists():
        time.sleep(0.01)
    time.sleep(0.7)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=LIMIT)
    assert process.returncode == 8


@pytest.fixture(autouse=True)
def uninterrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without a signal."""
    monkeypatch.setattr(interruption, "_interruption", None)


def test_only_the_first_signal_raises() -> None:
    """A second one must not end the cleanup."""
    require_uninterrupted()
    with pytest.raises(BuildInterrupted, match="by the first"):
        interrupt("interrupted by the first")
    interrupt("interrupted by the second")
    with pytest.raises(BuildInterrupted, match="by the first"):
        require_uninterrupted()


def lose_it() -> None:
    """Make another error of a signal, as code in Rust does that imports a module meanwhile."""
    with contextlib.suppress(BuildInterrupted):
        interrupt("interrupted by a signal")
    raise AttributeError("'list' object has no attribute 'layout'")


def test_a_library_that_loses_it() -> None:
    """A library that loses it ends the work nevertheless."""
    with pytest.raises(BuildInterrupted, match="by a signal"), refusing():
        lose_it()
