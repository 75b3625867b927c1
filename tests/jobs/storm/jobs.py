"""The jobs of the storm: what each starts, what it must leave, and what may disturb it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from tests.jobs.jobs import JOBS, NAME, Inputs, Runner
from tests.support.odd import compile_odd, odd
from tests.support.processes import DISTCACHE, clean_environment, launch

LIMIT: Final = 180  # seconds, after which a job has hung
MADE: Final = tuple(name for name in JOBS if name != "localize")
KINDS: Final = (*MADE, "build", "localize", "load", "load")
ODD: Final = ("flock=0", "madvise=22", "fallocate=95", "unlink=slow", "statvfs=endless")
OTHER_USER: Final = 54321

LOADER: Final = """
import hashlib, sys, distcache
distcache.wait(sys.argv[1], timeout=120)
data = distcache.open(sys.argv[1], local=sys.argv[2]).dataset("train")
digest = hashlib.sha256()
for number in range(0, len(data), 97):
    digest.update(data[number]["tokens"].numpy().tobytes())
print(digest.hexdigest())
"""


class World:
    """Where the jobs work, and what is right: made by jobs that nothing disturbs.

    Parameters
    ----------
    root : Path
        A directory of the storm's own that other users may pass.
    """

    def __init__(self, root: Path) -> None:
        self.library = compile_odd(root)
        self.shared, self.local = root / "shared", root / "local"
        self.output = root / "output"
        for directory in (root / "input", self.output, *map(self.directory, MADE)):
            directory.mkdir(parents=True)
        for kind in MADE:
            self.directory(kind).chmod(0o777)
        self.runner = Runner(Inputs(root / "input"), self.library)
        self.right = {kind: self.runner.expected(kind) for kind in MADE}
        self.cache = self.directory("build") / f"{NAME}.h5"
        alone = next((root / "input" / "expected" / "build").glob("*.h5"))
        words = [sys.executable, "-c", LOADER, str(alone), str(root / "none")]
        done = subprocess.run(words, env=clean_environment(), capture_output=True, check=True)
        self.tokens = done.stdout.decode().strip()

    def directory(self, kind: str) -> Path:
        """Return where jobs of a kind write."""
        return self.shared / kind.replace(" ", "-")

    def words(self, kind: str) -> list[str]:
        """Return the words of a job."""
        if kind == "load":
            return [sys.executable, "-c", LOADER, str(self.cache), str(self.local)]
        if kind == "localize":
            return [DISTCACHE, "localize", str(self.cache), "--store", str(self.local)]
        return [DISTCACHE, *map(str, JOBS[kind].words(self.runner.inputs, self.directory(kind)))]


class Disturbance(msgspec.Struct, frozen=True):
    """What happens to a job: nothing, if all is as by default."""

    kill_after: float | None = None
    signal: int = signal.SIGKILL
    odd: str = ""
    other_user: bool = False

    @property
    def harmful(self) -> bool:
        """Whether the job may fail of it."""
        return self.kill_after is not None or "full" in self.odd


class Job:
    """A job that has been started.

    Parameters
    ----------
    world : World
        Where.
    kind : str
        One of `KINDS`.
    chance : random.Random
        Draws the ranks and the disturbance.
    users : bool
        Whether it may be another user's.
    """

    def __init__(self, world: World, kind: str, chance: random.Random, *, users: bool) -> None:
        self.kind, self._tokens = kind, world.tokens
        self.disturbance = _draw(kind, chance, users=users)
        ranks = chance.choice((1, 1, 2, 3)) if kind != "load" else 1
        before, needed = launch("mpich", ranks) if ranks > 1 else ([], {})
        words = list(map(str, world.words(kind)))
        if self.disturbance.other_user:
            words[:1] = [sys.executable, "-m", "tests.support.as_user", str(OTHER_USER)]
        extra = odd(world.library, self.disturbance.odd) if self.disturbance.odd else {}
        self.name = f"{kind} x{ranks} {self.disturbance}"
        self.output = world.output / f"{time.monotonic_ns()}"
        with self.output.open("wb") as stream:
            self.process = subprocess.Popen(
                [*before, *words],
                env=clean_environment({**needed, **extra, "DISTCACHE_TIMEOUT_SCALE": "0.5"}),
                stdout=stream,
                stderr=stream,
                start_new_session=True,
                umask=0o022,
            )
        self.started = time.monotonic()

    def disturb(self) -> None:
        """Kill it if its time has come: all of it, or one of its ranks."""
        after = self.disturbance.kill_after
        if after is None or self.process.poll() is not None:
            return
        if time.monotonic() - self.started >= after:
            os.killpg(self.process.pid, self.disturbance.signal)

    def end(self) -> str | None:
        """Say what is wrong with how it ended; None if all is well. It must have ended."""
        code = self.process.returncode
        said = self.output.read_text(errors="replace")[-3000:]
        self.output.unlink()
        # A Ctrl-C before the command has begun is Python's own, and a launcher may cut it short.
        starting = "KeyboardInterrupt" in said or 'File "' not in said
        early = self.disturbance.signal == signal.SIGINT and starting
        if "Traceback" in said and self.kind != "load" and not early:
            return f"{self.name}: a traceback:\n{said}"
        if code != 0 and not self.disturbance.harmful:
            return f"{self.name}: exit code {code}:\n{said}"
        if self.kind == "load" and self._tokens not in said:
            return f"{self.name}: has read other tokens:\n{said}"
        return None


def _draw(kind: str, chance: random.Random, *, users: bool) -> Disturbance:
    """Draw what happens to a job."""
    other = users and kind == "build" and chance.random() < 0.25
    drawn = chance.random()
    if kind == "load" or drawn < 0.3:
        return Disturbance(other_user=other)
    if drawn < 0.65:
        way = chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
        return Disturbance(chance.uniform(0.2, 4), way, other_user=other)
    where = "local" if kind == "localize" else "shared"
    if drawn < 0.8:
        return Disturbance(
            odd=f"strike=full:write:{chance.randrange(1, 60)}:/{where}/", other_user=other
        )
    words: Sequence[str] = ODD if kind != "localize" else ODD[1:]
    return Disturbance(odd=chance.choice(words), other_user=other)
