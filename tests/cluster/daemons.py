"""Start and stop what runs in the background, with bounds on all waiting."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.waiting import wait_until

ENDS_WITHIN = 10.0  # seconds, after which a daemon is killed
LIMIT = 120.0  # seconds that any command may take


def run(
    *words: str | Path, limit: float = LIMIT, environment: Mapping[str, str] | None = None
) -> str:
    """Run a command to its end, and return what it writes.

    Raises
    ------
    RuntimeError
        With all that it wrote, if it fails.
    """
    done = subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
        stdin=subprocess.DEVNULL,
        env=environment,
    )
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(map(str, words))}: {done.returncode}\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def detach(words: Sequence[str | Path], pid_file: Path, environment: Mapping[str, str]) -> None:
    """Start a process that is nobody's child, and note its number."""
    script = 'echo $$ >"$1"; shift; exec "$@" </dev/null >/dev/null 2>&1'
    command = ["setsid", "--fork", "sh", "-c", script, "sh", pid_file, *words]
    subprocess.run([str(word) for word in command], env={**os.environ, **environment}, check=True)


def succeeds(*words: str | Path) -> bool:
    """Return whether a command ends well."""
    try:
        run(*words)
    except (RuntimeError, subprocess.TimeoutExpired):
        return False
    return True


def listens(host: str, port: int) -> bool:
    """Return whether something accepts connections."""
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


def stop(pid_file: Path, number: signal.Signals = signal.SIGTERM) -> None:
    """End the process that a file names, if there is one."""
    try:
        pid = int(pid_file.read_text())
        os.kill(pid, number)
    except (OSError, ValueError):
        return
    try:
        wait_until(lambda: not is_alive(pid), f"process {pid}", ENDS_WITHIN)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    pid_file.unlink(missing_ok=True)


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that has ended and waits for its parent does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
