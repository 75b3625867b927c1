"""A cache of 10,000 corpora, from `check` to the first batch, with Megatron-Core beside it.

The corpora are made up by `distcache mock`, 20 million documents in all; the blend has log-normal
weights and 100 million samples. Megatron-Core builds the same arrays, on one rank as always, and
all files are compared. What is held is the most of the largest process, looked at ten times a
second. Takes half an hour, and 30 GB of disk.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import megatron
from benchmarks.building import compare
from benchmarks.corpora import QUIET, write_config
from benchmarks.harness import Run, Table, command, process
from tests.support.processes import family

MARKS = ("many corpora",)
JUDGE = "0.16.1"
CORPORA, DOCUMENTS, SAMPLES = 10_000, 20_000_000, 100_000_000
HELD = ("files", "sockets", "mappings", "threads")


class Watch(threading.Thread):
    """Looks at all processes that this one has started, until it is told to end."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = dict.fromkeys(HELD, 0.0)
        self._end = threading.Event()

    def run(self) -> None:
        """Look ten times a second, and seldom at what takes long: a look costs it something."""
        begin = time.monotonic()
        while not self._end.wait(max(0.1, 0.05 * (time.monotonic() - begin))):
            for one in family(os.getpid()):
                with contextlib.suppress(OSError, IndexError):  # it has ended meanwhile
                    if one != os.getpid():
                        found = resources_of(one)
                        self.most = {name: max(found[name], self.most[name]) for name in HELD}

    def end(self) -> dict[str, float]:
        """End, and return the most that was seen."""
        self._end.set()
        self.join()
        return self.most


def resources_of(process_id: int) -> dict[str, int]:
    """Return what a process holds now."""
    place = Path(f"/proc/{process_id}")
    names = [os.readlink(entry) for entry in (place / "fd").iterdir()]
    status = (place / "status").read_text(encoding="utf-8")
    return {
        "files": len(names),
        "sockets": sum(name.startswith("socket:") for name in names),
        "mappings": (place / "maps").read_bytes().count(b"\n"),
        "threads": int(status.partition("Threads:")[2].split()[0]),
    }


def watched(action: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Run an action, and return the most that its processes held, too."""
    watch = Watch()
    watch.start()
    found = action()
    return found | watch.end()


def first(cache: str, store: str) -> dict[str, float]:
    """Open a cache and read a batch of 8."""
    import torch  # noqa: F401, PLC0415

    import distcache  # noqa: PLC0415

    begin = time.perf_counter()
    train = distcache.open(cache, local=store).dataset("train")
    train.__getitems__(list(range(min(8, len(train)))))
    return {"seconds": time.perf_counter() - begin}


def tables(run: Run) -> Iterator[Table]:
    """Run every command, and Megatron-Core."""
    work = run.directory
    words = [
        "--count",
        run.size(CORPORA),
        "--documents",
        run.size(DOCUMENTS),
        "-o",
        work / "data",
    ]
    command("distcache", "mock", *words)
    prefixes = [path.with_suffix("") for path in sorted((work / "data").glob("*.idx"))]
    random = np.random.default_rng(0)
    blend = [{"path": str(path), "weight": float(random.lognormal(0, 1))} for path in prefixes]
    config = write_config(work / "c.json", blend, run.size(SAMPLES))
    cache, store, theirs = work / "c.h5", work / "store", work / "megatron"
    build = [shutil.which("mpiexec"), "-n", 2, shutil.which("distcache"), "build", config]
    actions = {
        "check": lambda: command("distcache", "check", *prefixes),
        "plan": lambda: command("distcache", "plan", config),
        "build, 2 ranks": lambda: command(*build, "-o", work, "--name", "c", *QUIET),
        "verify --corpora": lambda: command("distcache", "verify", cache, "--corpora"),
        "localize": lambda: command("distcache", "localize", cache, "--store", store, *QUIET),
        "first batch of 8, after the imports": lambda: process(first, cache, store),
        "Megatron-Core builds": lambda: process(megatron.build, config, theirs),
    }
    rows = []
    for name, action in actions.items():
        found = Run(work, 1, run.scale).in_turn({name: partial(watched, action)})[name]
        memory = f"{found['memory'] / 2**20:,.0f} MiB"
        counts = [f"{found[one]:,.0f}" for one in HELD]
        rows.append([name, found.said("seconds"), found.said("cpu"), memory, *counts])
    compare(cache, theirs, work / "exported")
    head = ["", "seconds", "of CPU", "memory", "open files", "sockets", "mappings", "threads"]
    yield Table("many corpora", head, rows, rounds=1)
