"""`distcache localize` and `cp` of the same cache on one node.

Both bring the file to the disk: `cp` is followed by `sync`; distcache compares every block with its
digest besides. Before each is a pause, in which the host of a virtual machine takes back the memory
of what was removed, or half of it would be measured warm.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator

from benchmarks.corpora import QUIET, build, generate, write_config
from benchmarks.harness import Figures, Run, Table, command, factor

MARKS = ("localizing",)
DOCUMENTS = 2_000_000
SAMPLES = 300_000_000  # of 12 bytes each
PAUSE = 4.0  # seconds


def tables(run: Run) -> Iterator[Table]:
    """Compare both, and localizing again what is there."""
    work = run.directory
    blend = [{"path": generate(work / "corpus", run.size(DOCUMENTS), 600, seed=1), "weight": 1.0}]
    config = write_config(work / "c.json", blend, run.size(SAMPLES), sequence_length=16)
    cache = build(config, work)
    cache.read_bytes()  # into the page cache: the source is as fast as it can be

    def copy() -> dict[str, float]:
        (work / "copy").unlink(missing_ok=True)
        time.sleep(PAUSE)
        return command("sh", "-c", f"cp {cache} {work / 'copy'} && sync {work / 'copy'}")

    def localize() -> dict[str, float]:
        return command("distcache", "localize", cache, "--store", work / "store", *QUIET)

    def first() -> dict[str, float]:
        shutil.rmtree(work / "store", ignore_errors=True)
        time.sleep(PAUSE)
        return localize()

    found = run.in_turn({"`cp`, `sync`": copy, "`distcache localize`": first})
    found |= run.in_turn({"again: all is there, and is read back and compared": localize})
    size = cache.stat().st_size
    base = found["`cp`, `sync`"]
    rows = [
        [name, own.said("seconds"), speed(own, size), factor(base, own)]
        for name, own in found.items()
    ]
    yield Table("localizing", ["", "seconds", "GB/s", ""], rows)


def speed(found: Figures, size: int) -> str:
    """Return the speed of a case."""
    return f"{size / found['seconds'] / 1e9:.2f}"
