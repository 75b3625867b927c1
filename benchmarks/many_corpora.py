"""Caches of unusual size, from check to first batch, with Megatron-Core beside it.

The corpora are made up by `distcache mock`; the blend has lognormal weights. Of every command the
seconds are recorded, also those of its processors, and of its largest process the memory, open
files, sockets, mappings and threads. Megatron-Core builds the same arrays, on one rank as always,
and all files are compared.

    python benchmarks/many_corpora.py                       # takes half an hour, and 30 GB of disk
    python benchmarks/many_corpora.py --corpora 500 --samples 5000000 --json
    python benchmarks/many_corpora.py --corpora 100 --samples 1000000000 --sequence-length 128 \
        --only plan build first                    # 23 GB
    python benchmarks/many_corpora.py --corpora 1 --documents 1000000000 --samples 100000000 \
        --ranks 8 --memory-limit 12G --only plan build   # 35 GB
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from against_megatron import configuration, require_equal
from machine import machine

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.processes import family

HERE = Path(__file__).parent
STEPS = ("check", "plan", "build", "verify", "localize", "first", "Megatron-Core")
FIRST_BATCH = """
import sys, time
import torch, distcache
begin = time.perf_counter()
train = distcache.open(sys.argv[1], local=sys.argv[2]).dataset("train")
train.__getitems__(list(range(8)))
print(time.perf_counter() - begin)
"""


class Watch(threading.Thread):
    """Looks at a process and all that it starts, until it has ended."""

    def __init__(self, process: int) -> None:
        super().__init__(daemon=True)
        self._process = process
        self.most = dict.fromkeys(("memory", "files", "sockets", "mappings", "threads"), 0)

    def run(self) -> None:
        """Look ten times a second, and seldom at what takes long: a look costs it something."""
        begin = time.monotonic()
        while True:
            for process in family(self._process):
                with contextlib.suppress(OSError, IndexError):  # it has ended meanwhile
                    found = counts(process)
                    self.most = {name: max(found[name], most) for name, most in self.most.items()}
            if not Path(f"/proc/{self._process}").exists():
                return
            time.sleep(max(0.1, 0.05 * (time.monotonic() - begin)))


def counts(process: int) -> dict[str, int]:
    """Return what a process holds now; its memory is the most it has held."""
    place = Path(f"/proc/{process}")
    status = (place / "status").read_text(encoding="utf-8")
    names = [os.readlink(entry) for entry in (place / "fd").iterdir()]
    return {
        "memory": 1024 * int(status.partition("VmHWM:")[2].split()[0]),
        "files": len(names),
        "sockets": sum(name.startswith("socket:") for name in names),
        "mappings": (place / "maps").read_bytes().count(b"\n"),
        "threads": int(status.partition("Threads:")[2].split()[0]),
    }


def watched(command: list[str]) -> dict[str, Any]:
    """Run a command; return its seconds, its last line and the most of what it held."""
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    watch = Watch(process.pid)
    watch.start()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    said, wrong = process.communicate()
    seconds = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if process.returncode:
        sys.exit(f"{' '.join(command)[:400]} failed:\n{wrong[:4000]}")
    print(f"{seconds:8.2f} s  {' '.join(command)[:80]}", file=sys.stderr, flush=True)
    return {"seconds": seconds, "cpu": cpu, "said": (said.splitlines() or [""])[-1], **watch.most}


def make_config(work: Path, options: argparse.Namespace) -> Path:
    """Make up corpora, and return a configuration of all of them."""
    words = ["--corpora", str(options.corpora), "--documents", str(options.documents)]
    words += ["-o", str(work / "data")]
    subprocess.run(["distcache", "mock", *words], check=True, capture_output=True)
    paths = [path.with_suffix("") for path in sorted((work / "data").glob("*.idx"))]
    weights = np.random.default_rng(0).lognormal(0, 1, len(paths))
    blend = [
        {"path": str(path), "weight": float(weight)}
        for path, weight in zip(paths, weights, strict=True)
    ]
    config = work / "config.json"
    fields = configuration(blend, "1", options.samples) | {
        "mid_level_dataset_surplus": 0.005,
        "sequence_length": options.sequence_length,
    }
    config.write_text(json.dumps(fields), encoding="utf-8")
    return config


def measure(work: Path, config: Path, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Run the commands that are wanted, and Megatron-Core, and compare what they made."""
    cache = work / "cache.h5"
    quiet = ["--log-format", "none"]
    build = ["mpiexec", "-n", str(options.ranks), "distcache", "build", str(config)]
    build += ["-o", str(work), "--name", "cache", "--threads", str(options.threads), *quiet]
    if options.memory_limit:
        build += ["--memory-limit", options.memory_limit]
    prefixes = [entry["path"] for entry in json.loads(config.read_text())["blend"]]
    theirs, store = work / "megatron", work / "store"
    commands = {
        "check": ["distcache", "check", *prefixes],
        "plan": ["distcache", "plan", str(config)],
        "build": build,
        "verify": ["distcache", "verify", str(cache), "--corpora"],
        "localize": ["distcache", "localize", str(cache), "--store", str(store), *quiet],
        "first batch": [sys.executable, "-c", FIRST_BATCH, str(cache), str(store)],
        "Megatron-Core": [sys.executable, str(HERE / "peer.py"), str(config), str(theirs)],
    }
    results = {}
    for name, words in commands.items():
        if name.partition(" ")[0] not in options.only:
            continue
        found = results[name] = watched(words)
        if name == "first batch":
            found["seconds"] = float(found["said"])
        elif name == "Megatron-Core":
            found["seconds"] = json.loads(found["said"])["builder"]
            require_equal(cache, work / "exported", theirs)
        elif name == "build":
            print(f"{cache.stat().st_size / 1e9:.1f} GB", file=sys.stderr)
    return results


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpora", type=int, default=10_000)
    parser.add_argument("--documents", type=int, default=20_000_000)
    parser.add_argument("--samples", type=int, default=100_000_000)
    parser.add_argument("--sequence-length", type=int, default=4096)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--memory-limit")
    parser.add_argument("--only", nargs="+", choices=STEPS, default=STEPS)
    parser.add_argument("--directory", help="where to work; what is made in it is removed")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        work = Path(name)
        config = make_config(work, options)
        results = measure(work, config, options)
        facts = machine(work)
    if options.json:
        print(json.dumps({"machine": facts, "results": results}, indent=2))
        return
    print(", ".join(f"{key}: {value}" for key, value in facts.items()), end="\n\n")
    print("| | seconds | CPU s | memory | open files | sockets | mappings | threads |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for command, found in results.items():
        held = (found[name] for name in ("files", "sockets", "mappings", "threads"))
        times = (f"{found[name]:.2f}" for name in ("seconds", "cpu"))
        cells = [*times, f"{found['memory'] >> 20} MiB", *map(str, held)]
        print(f"| {command} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
