"""A real Grid Engine: a host in namespaces of its own, with Debian's programs."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.daemons import detach, run, stop
from tests.support.waiting import wait_until

PACKAGES = Path(__file__).parents[2] / "build" / "schedulers" / "gridengine"
INIT = Path(__file__).with_name("grid_engine.sh")
NAMESPACES = "--net --uts --mount --ipc --pid --fork --kill-child --mount-proc"


class GridEngine:
    """A master and an execution host of eight slots.

    Parameters
    ----------
    base : Path
        A directory of its own for all that it writes.
    """

    def __init__(self, base: Path) -> None:
        self.base = base
        self._pid_file = base / "holder.pid"
        self.environment = {
            "SGE_ROOT": str(base / "cell"),
            "SGE_CELL": "default",
            "SGE_QMASTER_PORT": "6444",
            "SGE_EXECD_PORT": "6445",
            "PATH": os.environ["PATH"],
        }

    def start(self) -> None:
        """Start it, and wait until it takes jobs."""
        (self.base / "tmp").mkdir()
        (self.base / "tmp").chmod(0o1777)
        words = ["unshare", *NAMESPACES.split(), "bash", str(INIT), self.base, PACKAGES]
        detach([str(word) for word in words], self._pid_file, self.environment)
        wait_until((self.base / "up").exists, "Grid Engine", logs=[self.base / "log"])
        wait_until(lambda: "sgehost" in self.run("qstat", "-f"), "a queue", 60)

    def stop(self) -> None:
        """Stop all of it."""
        stop(self._pid_file, signal.SIGKILL)

    def run(self, *command: str | Path, **variables: str) -> str:
        """Run a command on the host, and return what it writes."""
        return run(*self.words(*command, variables=variables))

    def words(self, *command: str | Path, variables: Mapping[str, str] = {}) -> list[str]:
        """Return the words that run a command on the host."""
        holder = self._pid_file.read_text().strip()
        first = Path(f"/proc/{holder}/task/{holder}/children").read_text().split()[0]
        given = {**self.environment, **variables}
        env = ["env", "-C", "/", *(f"{name}={value}" for name, value in given.items())]
        return [
            "nsenter",
            "-t",
            first,
            "-u",
            "-m",
            "-n",
            "-p",
            "-i",
            "-r",
            *env,
            *map(str, command),
        ]
