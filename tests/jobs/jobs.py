"""The commands of all ranks as a table: whatever holds for one has to hold for all.

A new command is a row of `JOBS`; `test_jobs` and the storm then ask it what they ask the others.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from tests.support import here, texts
from tests.support.corpora import blend_fields, write_corpora
from tests.support.large import write_large
from tests.support.mds_writer import write_mds
from tests.support.odd import odd
from tests.support.processes import start

NAME: Final = "out"  # of what a job makes


class Inputs:
    """What all jobs read.

    Parameters
    ----------
    directory : Path
        New directory for them.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.corpora = write_corpora(directory)
        self._write_texts()
        self._write_tokens()
        self.build = self._write_config()
        self.split = self._write_split()
        here.index(self.mds, directory / "shards", column="tokens")
        fields = json.loads(self.build.read_text())
        self.cache = Path(here.build(fields, directory / "caches", "c").path)

    def _write_texts(self) -> None:
        """Write text that is cut into several pieces, and a tokenizer."""
        drawn = texts.documents(400)
        self.tokenizer = texts.train_bpe(self.directory / "tokenizer.json", drawn)
        lines = texts.write_jsonl(self.directory / "few.jsonl", drawn).read_bytes()
        self.text = self.directory / "a.jsonl"
        self.text.write_bytes(lines * (1 + (6 << 20) // len(lines)))

    def _write_tokens(self) -> None:
        """Write token ids as Parquet and as MDS shards."""
        chance = random.Random(3)
        rows = [[chance.randrange(900) for _ in range(20 + i % 50)] for i in range(3000)]
        for number in range(3):
            texts.write_shard(self.directory / f"{number}.parquet", rows[number::3], groups=5)
        self.tokens = sorted(self.directory.glob("*.parquet"))
        samples = [{"tokens": np.array(row, "i4")} for row in rows[:200]]
        column = {"tokens": "ndarray:int32"}
        self.mds = write_mds(self.directory / "mds", column, samples, codec="zstd", per_shard=9)

    def _write_config(self) -> Path:
        """Write a configuration of three corpora."""
        path = self.directory / "build.json"
        path.write_text(json.dumps(blend_fields(self.corpora)))
        return path

    def _write_split(self) -> Path:
        """Write a configuration whose large sections all ranks build together."""
        large = [write_large(self.directory / name, n) for name, n in SIZES.items()]
        fields = {
            "sequence_length": 24,
            "seed": 77,
            "samples": {"train": 8_000_000, "valid": 5_000_000},
            "blend_per_split": {"train": large[:1], "valid": large[1:]},
            "tokenizer": {"class": "X"},
        }
        path = self.directory / "split.json"
        path.write_text(json.dumps(fields))
        return path


SIZES: Final = {"large": 1_000_000, "larger": 1_300_000}  # sequences


class Job(NamedTuple):
    """A row of the table.

    Attributes
    ----------
    words : callable
        Words of the command for inputs and a directory.
    cleaning : int
        Number of the file that rank 0 removes first when all is published.
    middle : str
        Call in the middle of rank 0's work, with its number.
    other : str
        Such a call of rank 1; empty if it makes none.
    compared : tuple of str
        Patterns of the files whose bytes depend on nothing but the inputs.
    """

    words: Callable[[Inputs, Path], list[Any]]
    cleaning: int
    middle: str
    other: str = "write:2"
    compared: tuple[str, ...] = ("*",)


JOBS: Final = {
    "build": Job(
        lambda given, out: ["build", given.build, "-o", out, "--name", NAME],
        cleaning=8,
        middle="write:20",
        other="fsync:1",
        compared=("*.h5",),
    ),
    "build of split sections": Job(
        lambda given, out: ["build", given.split, "-o", out, "--name", NAME, "--threads", 1],
        cleaning=8,
        middle="write:30",
        other="write:7",
        compared=("*.h5",),
    ),
    "ingest text": Job(
        lambda given, out: [
            *("ingest", "text", given.text, "--tokenizer", given.tokenizer, "--append-eod"),
            *("--shard-size", "3M", "-o", out / NAME, "--threads", 1),
        ],
        cleaning=9,
        middle="write:14",
    ),
    "ingest tokens": Job(
        lambda given, out: [
            *("ingest", "tokens", *given.tokens, "--vocab-size", 1000, "-o", out / NAME)
        ],
        cleaning=7,
        middle="write:8",
    ),
    "merge": Job(
        lambda given, out: [
            *("merge", given.corpora["plain"], given.corpora["second"], "-o", out / NAME)
        ],
        cleaning=7,
        middle="write:6",
    ),
    "select": Job(
        lambda given, out: [
            *("select", given.corpora["third"], "--sample", "0.5", "-o", out / NAME)
        ],
        cleaning=8,
        middle="write:5",
        other="write:2",
        compared=("*.bin", "*.idx"),  # the receipt has the way from here to the corpus
    ),
    "index": Job(
        lambda given, out: ["index", "mds", given.mds, "-o", out / NAME],
        cleaning=9,
        middle="write:12",
    ),
    "materialize": Job(
        lambda given, out: ["materialize", given.directory / "shards", "-o", out / NAME],
        cleaning=7,
        middle="write:6",
    ),
    "localize": Job(
        lambda given, out: ["localize", given.cache, "--store", out / NAME],
        cleaning=2,
        middle="write:4",
        other="",
        compared=("*.h5", "*.idx"),
    ),
}


class Runner:
    """Runs jobs of the table over the same inputs.

    Parameters
    ----------
    inputs : Inputs
        What they read.
    library : Path
        What `tests.support.odd` has compiled.
    """

    def __init__(self, inputs: Inputs, library: Path) -> None:
        self.inputs = inputs
        self.library = library
        self._expected: dict[str, dict[str, bytes]] = {}

    def run(
        self,
        name: str,
        out: Path,
        ranks: int = 1,
        launcher: str = "mpich",
        strike: str = "",
        rank: int = 0,
        more: Sequence[Any] = (),
        environment: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a job, in which a call of one rank may be struck: ``ACTION:CALL:N[:PART]``."""
        extra = dict(environment or {})
        struck = self.inputs.directory / f"struck-{os.getpid()}"
        if strike:
            words = f"{with_part(strike, out)} rank={rank} struck={struck}"
            extra |= odd(self.library, words)
        done = start([*JOBS[name].words(self.inputs, out), *more], ranks, launcher, extra)
        if strike:
            assert struck.exists(), f"there was no such call: {strike}\n{done.stderr}"
            struck.unlink()
        return done

    def expected(self, name: str) -> dict[str, bytes]:
        """Return what one process makes, by name."""
        if name not in self._expected:
            out = self.inputs.directory / "expected" / name.replace(" ", "-")
            out.mkdir(parents=True)
            done = self.run(name, out)
            assert done.returncode == 0, done.stderr
            self._expected[name] = published(name, out)
        return self._expected[name]


def with_part(strike: str, out: Path) -> str:
    """Return the word for a strike at a path of this output; ``final`` are its final names."""
    call, _, part = strike.partition(":final")
    return f"strike={call}:{out}/{NAME if ':final' in strike else ''}{part}"


def published(name: str, out: Path) -> dict[str, bytes]:
    """Return the files that have final names and bytes that can be compared, by their paths."""
    patterns = JOBS[name].compared
    paths = [path for pattern in patterns for path in out.rglob(pattern) if path.is_file()]
    names = {str(path.relative_to(out)): path for path in paths}
    # What is hidden is a running job's, which may remove it at any time.
    return {name: path.read_bytes() for name, path in names.items() if not is_hidden(name)}


def hidden(out: Path) -> list[str]:
    """Return what is left of unfinished work."""
    paths = [str(path.relative_to(out)) for path in out.rglob("*")]
    return sorted(path for path in paths if is_hidden(path) and ".distcache-store" not in path)


def is_hidden(path: str) -> bool:
    """Return whether a path has a part that begins with a point."""
    return any(part.startswith(".") for part in Path(path).parts)
