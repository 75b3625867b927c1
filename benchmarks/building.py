"""Megatron-Core and distcache build the same index arrays.

The corpora are generated: log-normal lengths, sparse `.bin` files, 20 million documents in all.
Every array is compared. *Builder* is all of a process but its start and its imports.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks import megatron
from benchmarks.corpora import QUIET, blend_of, generate, write_config
from benchmarks.harness import Figures, Run, Table, command, factor, process, require_equal
from distcache.cache import open_cache

MARKS = ("building", "opening")
JUDGE = "0.16.1"
DOCUMENTS = 20_000_000
MANY = (800, 2400)


def cases(run: Run) -> Iterator[tuple[str, Path]]:
    """Yield configurations by name: epochs of one corpus, and blends of many."""
    documents = run.size(DOCUMENTS)
    one = [{"path": generate(run.directory / "one", documents, 600, seed=1), "weight": 1.0}]
    per_epoch = max(documents * 588 // 4096, 1)
    config = run.directory / "config.json"
    yield "1 epoch", write_config(config, one, per_epoch)
    yield "4 epochs", write_config(config, one, documents // 2)
    for count in MANY:
        corpora = max(run.size(count), 2)
        for samples, others, sigma in (
            (per_epoch, per_epoch // 100, 1.0),
            (documents // 2, 0, 1.5),
        ):
            blend = blend_of(run.directory / f"{count}", corpora, documents // corpora, sigma)
            more = "" if others else f", {samples:,} samples"
            yield f"{corpora:,} corpora{more}", write_config(config, blend, samples, others)


def ours(config: Path, out: Path, ranks: int, threads: int) -> dict[str, float]:
    """Build by distcache."""
    shutil.rmtree(out, ignore_errors=True)
    launcher = ["mpiexec", "-n", ranks] if ranks > 1 else []
    words = [*launcher, shutil.which("distcache"), "build", config, "-o", out, "--name", "c"]
    found = command(*words, "--threads", threads, *QUIET)
    record = json.loads((out / "c.h5.build.json").read_text(encoding="utf-8"))
    found["builder"] = sum(record["ranks"][0]["seconds"].values())
    found["held"] = max(rank["peak_memory"] for rank in record["ranks"])
    return found


def theirs(config: Path, out: Path) -> dict[str, float]:
    """Build by Megatron-Core."""
    shutil.rmtree(out, ignore_errors=True)
    return process(megatron.build, config, out)


def compare(cache: Path, directory: Path, exported: Path) -> None:
    """Compare every file that Megatron has written with what distcache exports."""
    command("distcache", "export", cache, "-o", exported)
    for path in directory.iterdir():
        require_equal(path.name, path.read_bytes(), (exported / path.name).read_bytes())
    shutil.rmtree(exported)


def opening(cache: str) -> dict[str, float]:
    """Open a cache, and look up all of its arrays."""
    begin = time.perf_counter()
    opened = open_cache(cache)
    header = time.perf_counter() - begin
    arrays = [
        opened.read(view)
        for table in ("sections", "blends")
        for row in range(len(opened.table(table)))
        for view in opened.arrays(table, row).values()
    ]
    seconds = time.perf_counter() - begin
    mappings = Path("/proc/self/maps").read_text(encoding="utf-8").count(cache)
    return {"header": header, "all": seconds, "arrays": len(arrays), "mappings": mappings}


def written(directory: Path, size: int) -> dict[str, float]:
    """Write as many bytes to the same disk, and sync them."""
    path = directory / "dd"
    count = max(size >> 20, 1)
    words = ["dd", "if=/dev/zero", f"of={path}", "bs=1M", f"count={count}", "conv=fsync"]
    found = command(*words, "status=none")
    path.unlink()
    return found


def tables(run: Run) -> Iterator[Table]:
    """Compare each configuration."""
    rows: list[list[str]] = []
    openings: list[list[str]] = []
    out = {name: run.directory / name for name in ("megatron", "t1", "t2", "r2")}
    for case, config in cases(run):
        found = run.in_turn(
            {
                "Megatron-Core": partial(theirs, config, out["megatron"]),
                "1 rank, 1 thread": partial(ours, config, out["t1"], 1, 1),
                "1 rank, 2 threads": partial(ours, config, out["t2"], 1, 2),
                "2 ranks, 1 thread": partial(ours, config, out["r2"], 2, 1),
            }
        )
        caches = [out[name] / "c.h5" for name in ("t1", "t2", "r2")]
        require_equal("a cache", *(path.read_bytes() for path in caches))
        compare(caches[0], out["megatron"], run.directory / "exported")
        size = caches[0].stat().st_size
        limit = run.in_turn({"dd": partial(written, run.directory, size)})["dd"]
        rows += [row_of(case, name, found, limit) for name in found]
        one = run.in_turn({"opening": partial(process, opening, caches[0])})["opening"]
        times = [one.said(name, "ms", 1e-3) for name in ("header", "all")]
        openings.append([case, f"{one['arrays']:,.0f}", f"{one['mappings']:.0f}", *times])
    head = ["case", "", "builder", "", "whole process", "", "peak memory", "", "`dd` of the cache"]
    yield Table("building", head, rows)
    head = ["opening", "arrays", "mappings", "header and tables", "views of all arrays"]
    yield Table("opening", head, openings)


def row_of(case: str, name: str, found: dict[str, Figures], limit: Figures) -> list[str]:
    """Return the row of a contender."""
    base, own = found["Megatron-Core"], found[name]
    cells = [case, name]
    for figure, unit, divisor in (("builder", "s", 1), ("seconds", "s", 1), ("held", "GiB", 2**30)):
        cells += [own.said(figure, unit, divisor), factor(base, own, figure)]
    return [*cells, limit.said("seconds")]
