"""The jobs of the storm: what each starts, what it must leave, and what may disturb it."""

from __future__ import annotations

import json
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
import numpy as np

from tests.faults.odd import odd
from tests.support.corpora import write_lengths
from tests.support.processes import DISTCACHE, clean_environment, launch
from tests.support.texts import documents, train_bpe, write_jsonl

LIMIT: Final = 180  # seconds, after which a job has hung
KINDS: Final = ("build", "build", "ingest", "merge", "localize", "load")
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
    """Where the jobs work, and what is right: all of it made by jobs that nothing disturbs.

    Parameters
    ----------
    root : Path
        A directory of the storm's own that other users may pass.
    library : Path
        What `tests.faults.odd` compiled.
    """

    def __init__(self, root: Path, library: Path) -> None:
        self.root, self.library = root, library
        self.shared, self.local = root / "shared", root / "local"
        for directory in (self.shared, root / "input"):
            directory.mkdir()
        self.shared.chmod(0o777)
        self._write_input()
        self.right = self._truth()

    def words(self, kind: str, shared: Path, local: Path) -> list[str]:
        """Return the words of a job."""
        given = self.root / "input"
        cache = shared / "c.h5"
        return {
            "build": [DISTCACHE, "build", given / "c.json", "-o", shared, "--name", "c"],
            "ingest": [
                *(DISTCACHE, "ingest", "text", given / "a.jsonl", given / "b.jsonl"),
                *("--tokenizer", given / "tokenizer.json", "--eod", "0", "-o", shared / "t"),
            ],
            "merge": [DISTCACHE, "merge", given / "one", given / "two", "-o", shared / "m"],
            "localize": [DISTCACHE, "localize", cache, "--store", local],
            "load": [sys.executable, "-c", LOADER, cache, local],
        }[kind]  # type: ignore[return-value]

    def _write_input(self) -> None:
        """Write two corpora, a configuration, and text with its tokenizer."""
        given = self.root / "input"
        chance = random.Random(7)
        for name, count in (("one", 30_000), ("two", 5_000)):
            lengths = [chance.randrange(1, 400) for _ in range(count)]
            write_lengths(given / name, np.array(lengths))
        config = {
            "sequence_length": 64,
            "split": "90,10,0",
            "samples": {"train": 400_000, "valid": 500},
            "blend": [
                {"path": str(given / "one"), "weight": 0.7},
                {"path": str(given / "two"), "weight": 0.3},
            ],
        }
        (given / "c.json").write_text(json.dumps(config))
        texts = documents(600)
        train_bpe(given / "tokenizer.json", texts)
        for number, name in enumerate("ab"):
            write_jsonl(given / f"{name}.jsonl", texts[number::2])

    def _truth(self) -> dict[str, bytes]:
        """Run every job alone, and return the bytes of what it left, by name."""
        alone = self.root / "alone"
        alone.mkdir()
        for kind in ("build", "ingest", "merge"):
            done = subprocess.run(
                list(map(str, self.words(kind, alone, alone))),
                env=clean_environment(),
                capture_output=True,
                timeout=LIMIT,
                check=False,
            )
            assert done.returncode == 0, done.stderr.decode()
        words = [sys.executable, "-c", LOADER, str(alone / "c.h5"), str(alone / "none")]
        done = subprocess.run(words, env=clean_environment(), capture_output=True, check=True)
        self.tokens = done.stdout.decode().strip()
        names = ("c.h5", "t.bin", "t.idx", "m.bin", "m.idx")
        return {name: (alone / name).read_bytes() for name in names}


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
        words = list(map(str, world.words(kind, world.shared, world.local)))
        if self.disturbance.other_user:
            words[:1] = [sys.executable, "-m", "tests.support.as_user", str(OTHER_USER)]
        extra = odd(world.library, self.disturbance.odd) if self.disturbance.odd else {}
        self.name = f"{kind} x{ranks} {self.disturbance}"
        self.output = world.root / "output" / f"{time.monotonic_ns()}"
        self.output.parent.mkdir(exist_ok=True)
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
    if drawn < 0.8:
        return Disturbance(odd=f"full={chance.randrange(1, 60)}", other_user=other)
    words: Sequence[str] = ODD if kind != "localize" else ODD[1:]
    return Disturbance(odd=chance.choice(words), other_user=other)
