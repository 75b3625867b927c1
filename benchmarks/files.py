"""Reading an index against `cat`, and writing a cache against `dd`, in turn in one run.

Reading is what a build does with every `.idx`: checking all of it, and its digest, from the page
cache, against `cat` to /dev/null. Writing is what it does with its arrays: digests of all of them,
writing, and syncing, against `dd` with `conv=fsync` on the same disk.

    python benchmarks/files.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from corpora import generate
from machine import machine

from distcache.builder.arrays import write_in_chunks
from distcache.corpus.examine import require_sound
from distcache.plan.layout import ArrayPlace
from distcache.ranks.communicator import SerialCommunicator
from distcache.storage.unfinished_file import UnfinishedFile


def timed(action: Callable[[], object]) -> float:
    """Return the seconds of an action."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def cat(path: Path) -> float:
    """Return the seconds of cat to /dev/null."""
    return timed(lambda: subprocess.run(f"exec cat '{path}' > /dev/null", shell=True, check=True))


def dd(path: Path, nbytes: int) -> float:
    """Return the seconds in which dd writes so many bytes and syncs."""
    command = ["dd", "if=/dev/zero", f"of={path}", "bs=8M", f"count={nbytes >> 23}", "conv=fsync"]
    return timed(lambda: subprocess.run(command, check=True, capture_output=True))


def write(path: Path, values: np.ndarray) -> float:
    """Return the seconds in which an array is digested, written and synced, as a build does."""
    path.touch()
    place = ArrayPlace("array", values.dtype.str, values.shape, 0, values.nbytes)

    def act() -> None:
        with UnfinishedFile(str(path)) as file:
            write_in_chunks(file, place, values)
            file.sync()

    return timed(act)


def main() -> None:
    """Measure both, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=20_000_000)
    parser.add_argument("--bytes", type=int, default=1 << 30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    runs: dict[str, list[float]] = {}
    values = np.ones(options.bytes // 8, np.int64)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        prefix = generate(work / "corpus", options.documents, 600, seed=1)
        index = Path(f"{prefix}.idx")
        size = index.stat().st_size
        contenders: dict[str, tuple[int, Callable[[], float]]] = {
            "cat": (size, lambda: cat(index)),
            "checked and digested, 1 thread": (size, lambda: examine(prefix, 1)),
            "checked and digested, 2 threads": (size, lambda: examine(prefix, 2)),
            "dd": (values.nbytes, lambda: dd(work / "dd", values.nbytes)),
            "digested, written and synced": (values.nbytes, lambda: write(work / "own", values)),
        }
        for _ in range(options.rounds):
            for contender, (_, run) in contenders.items():
                runs.setdefault(contender, []).append(run())
                for left in (work / "dd", work / "own"):
                    left.unlink(missing_ok=True)
        facts = machine(work)
    speeds = {
        contender: contenders[contender][0] / statistics.median(found)
        for contender, found in runs.items()
    }
    if options.json:
        print(json.dumps({"machine": facts, "bytes per second": speeds}, indent=2))
        return
    print(", ".join(f"{name}: {value}" for name, value in facts.items()), end="\n\n")
    print("| | GB/s | |\n|---|--:|--:|")
    for contender, speed in speeds.items():
        base = speeds["dd" if contender in ("dd", "digested, written and synced") else "cat"]
        print(f"| {contender} | {speed / 1e9:.2f} | {speed / base:.2f}x |")


def examine(prefix: str, threads: int) -> float:
    """Return the seconds in which a corpus is found sound."""
    return timed(lambda: require_sound(SerialCommunicator(), [prefix], threads))


if __name__ == "__main__":
    main()
