"""What starting costs: seconds, and the files that 64 ranks open, which a shared filesystem serves.

Counts are those of strace, for one rank: opens, those among them of files that do not exist, and
other calls that name a file. They are the same on every machine with the same packages.

    python benchmarks/starting.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from corpora import generate
from machine import machine

RANKS = 64
NAMING = ("openat", "newfstatat", "stat", "access", "readlink")


def commands(work: Path) -> dict[str, list[str]]:
    """Return what is started, by name."""
    prefix = generate(work / "corpus", 5000, 600, seed=1)
    config = work / "config.json"
    fields = {
        "sequence_length": 1024,
        "split": "1",
        "samples": {"train": 1000, "valid": 0, "test": 0},
        "blend": [{"path": prefix}],
        "tokenizer": {"class": "NullTokenizer"},
    }
    config.write_text(json.dumps(fields), encoding="utf-8")
    build = ["distcache", "build", str(config), "-o", str(work / "out"), "--log-format", "none"]
    subprocess.run([*build, "--name", "cache"], check=True, capture_output=True)
    return {
        "python": [sys.executable, "-c", "pass"],
        "numpy": [sys.executable, "-c", "import numpy"],
        "distcache --help": ["distcache", "--help"],
        "a rank of distcache build": [*build, "--name", "cache"],
        "the loader, without torch": [sys.executable, "-c", "import distcache.train.open"],
        "torch": [sys.executable, "-c", "import torch"],
        "the loader": [sys.executable, "-c", "import distcache.train.dataset"],
    }


def counted(command: list[str]) -> tuple[int, int, int]:
    """Return the opens of a command, those of nothing, and its other calls that name files."""
    with tempfile.NamedTemporaryFile("r") as log:
        calls = ",".join(NAMING)
        traced = ["strace", "-f", "-e", f"trace={calls}", "-o", log.name, *command]
        subprocess.run(traced, check=True, capture_output=True)
        lines = log.read().splitlines()
    opens = [line for line in lines if "openat(" in line]
    return len(opens), sum("ENOENT" in line for line in opens), len(lines) - len(opens)


def seconds(command: list[str], rounds: int) -> float:
    """Return the median seconds of a command."""
    found = []
    for _ in range(rounds):
        begin = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        found.append(time.perf_counter() - begin)
    return statistics.median(found)


def main() -> None:
    """Measure all, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as name:
        for what, command in commands(Path(name)).items():
            results[what] = (seconds(command, options.rounds), *counted(command))
        facts = machine(Path(name))
    if options.json:
        print(json.dumps({"machine": facts, "results": results}, indent=2))
        return
    print(", ".join(f"{name}: {value}" for name, value in facts.items()), end="\n\n")
    print(f"| | seconds | opens | of nothing | other calls | opens of {RANKS} ranks |")
    print("|---|--:|--:|--:|--:|--:|")
    for what, (taken, opens, missing, others) in results.items():
        print(f"| {what} | {taken:.2f} | {opens} | {missing} | {others:,} | {RANKS * opens:,} |")


if __name__ == "__main__":
    main()
