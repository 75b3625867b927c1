"""`distcache localize` and `cp` of the same cache on one node, in turn.

Both bring the file to the disk: `cp` is followed by `sync`, distcache syncs by itself, and compares
every block with its digest besides. The times are of whole processes. Before each is a pause, in
which the host of a virtual machine takes back the memory of what was removed, or half of it would
be measured warm.

    python benchmarks/localizing.py                # a cache of 3.7 GB
    python benchmarks/localizing.py --samples 20000000 --rounds 3
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from corpora import generate
from machine import machine

DOCUMENTS = 2_000_000
SEQUENCE_LENGTH = 16
PAUSE = 4.0  # seconds


def make_cache(work: Path, samples: int) -> Path:
    """Build a cache of so many samples, 12 bytes each."""
    generate(work / "corpus", DOCUMENTS, 600, seed=1)
    fields = {
        "sequence_length": SEQUENCE_LENGTH,
        "split": "1,0,0",
        "samples": {"train": samples, "valid": 0, "test": 0},
        "blend": [{"path": str(work / "corpus"), "weight": 1.0}],
        "tokenizer": {},
    }
    config = work / "config.json"
    config.write_text(json.dumps(fields), encoding="utf-8")
    command = ["distcache", "build", str(config), "-o", str(work), "--name", "c", "--log-format"]
    subprocess.run([*command, "none"], check=True, stdout=subprocess.DEVNULL)
    return work / "c.h5"


def timed(action: Callable[[], object]) -> float:
    """Return the seconds that something takes."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def copy(cache: Path, target: Path) -> None:
    """Copy the file, and bring it to the disk."""
    subprocess.run(["cp", str(cache), str(target)], check=True)
    subprocess.run(["sync", str(target)], check=True)


def localize(cache: Path, root: Path) -> None:
    """Localize the cache; its one index comes too."""
    command = ["distcache", "localize", str(cache), "--store", str(root), "--log-format", "none"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def measure(work: Path, samples: int, rounds: int) -> dict[str, Any]:
    """Return the median seconds of each, and of localizing again what exists."""
    cache = make_cache(work, samples)
    cache.read_bytes()  # into the page cache: the source is as fast as it can be
    seconds: dict[str, list[float]] = {"cp": [], "localize": [], "again": []}
    for _ in range(rounds):
        time.sleep(PAUSE)
        seconds["cp"].append(timed(lambda: copy(cache, work / "copy")))
        (work / "copy").unlink()
        time.sleep(PAUSE)
        seconds["localize"].append(timed(lambda: localize(cache, work / "local")))
        seconds["again"].append(timed(lambda: localize(cache, work / "local")))
        shutil.rmtree(work / "local")
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    return {"bytes": cache.stat().st_size, "seconds": medians, "all": seconds}


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=300_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        found = measure(Path(name), options.samples, options.rounds)
        facts = machine(Path(name))
    if options.json:
        print(json.dumps({"machine": facts, **found}, indent=2))
        return
    print(", ".join(f"{name}: {value}" for name, value in facts.items()), end="\n\n")
    print("| | seconds | GB/s | |\n|---|--:|--:|--:|")
    for name, seconds in found["seconds"].items():
        ratio = found["seconds"]["cp"] / seconds
        print(f"| {name} | {seconds:.2f} | {found['bytes'] / seconds / 1e9:.2f} | {ratio:.2f}x |")


if __name__ == "__main__":
    main()
