"""Samples of Megatron-Core's dataset and of distcache's: one by one, and by the same `DataLoader`.

Corpora of real tokens in the page cache, no attention masks; in the training process, and in one
worker of it. The first batches are compared. *Cold* batches are from all over `.bin` files that are
not in the page cache. *Open* is from nothing to the first sample, beyond imports. Loss masks have a
loss everywhere, so that batches are equal.
"""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import megatron
from benchmarks.corpora import blend_of, build, write_config
from benchmarks.harness import Figures, Run, Table, command, process, require_equal
from distcache.corpus import open_idx

MARKS = ("loading",)
JUDGE = "0.16.1"
TOKENS = 500_000_000
COMPARED = 20
COLD = 100


class Case(NamedTuple):
    """How many corpora, of which samples of how many tokens are put together in batches."""

    corpora: int
    length: int
    batch: int


CASES = {
    "1 corpus, 4,096 tokens": Case(1, 4096, 8),
    "1 corpus, 131,072 tokens": Case(1, 131072, 1),
    "800 corpora, 4,096 tokens": Case(800, 4096, 8),
}


def make(run: Run, work: Path, case: Case) -> tuple[Path, Path, Path]:
    """Write corpora, build their cache and export it, and build one with loss masks.

    Returns
    -------
    Path, Path, Path
        Configuration, cache, and cache with loss masks.
    """
    corpora = max(run.size(case.corpora), 1)
    documents = run.size(TOKENS) // 600 // corpora
    blend = blend_of(work, corpora, documents, 0.5, real=True)
    samples = max(int(0.9 * documents * corpora * 600 / case.length), 2)
    config = write_config(work / "c.json", blend, samples, sequence_length=case.length)
    cache = build(config, work)
    command("distcache", "export", cache, "-o", work / "megatron")
    for path in work.glob("*.bin"):
        tokens = path.stat().st_size // open_idx(str(path.with_suffix(""))).item_size
        path.with_suffix(".loss").write_bytes(b"\1" * tokens)
    return config, cache, build(config, work / "masked")


def dataset_of(kind: str, source: str, directory: str) -> tuple[Any, dict[str, float]]:
    """Open a dataset, and return it with what that took."""
    if kind == "megatron":
        megatron.start()
    else:
        import distcache.train.dataset  # noqa: PLC0415  else imported with the first one

        warnings.simplefilter("ignore")
    files, maps = open_files()
    begin = time.perf_counter()
    if kind == "megatron":
        dataset = megatron.datasets(source, directory)[0]
    else:
        dataset = distcache.open(source).dataset("train")
    assert len(dataset[0]["tokens"]) > 0
    seconds = time.perf_counter() - begin
    after = open_files()
    return dataset, {
        "open": seconds,
        "descriptors": after[0] - files,
        "mappings": after[1] - maps,
    }


def open_files() -> tuple[int, int]:
    """Return the numbers of this process's descriptors and mappings."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").count("\n")
    return len(list(Path("/proc/self/fd").iterdir())), maps


def reading(kind: str, source: str, directory: str, batch: int, count: int) -> dict[str, Any]:
    """Read batches here and in a worker, and samples; the digest is of the first batches."""
    from torch.utils.data import DataLoader  # noqa: PLC0415

    dataset, found = dataset_of(kind, source, directory)
    digest = hashlib.sha256()
    for some, _ in zip(DataLoader(dataset, batch), range(COMPARED), strict=False):
        for name in ("tokens", "labels", "loss_mask", "position_ids"):
            digest.update(some[name].numpy().tobytes())
    for where, workers in (("here", 0), ("worker", 1)):
        iterator = iter(DataLoader(dataset, batch, num_workers=workers))
        next(iterator)
        begin = time.perf_counter()
        done = sum(1 for _ in zip(range(count), iterator, strict=False))
        found[where] = done * batch / (time.perf_counter() - begin)
    chosen = np.random.default_rng(1).permutation(len(dataset))[: count * batch].tolist()
    for _ in range(2):  # the first time opens what the batches have not opened
        begin = time.perf_counter()
        for number in chosen:
            dataset[number]
        found["single"] = len(chosen) / (time.perf_counter() - begin)
    return found | {"digest": int(digest.hexdigest()[:12], 16)}


def cold(kind: str, source: str, directory: str, batch: int, seed: int) -> dict[str, float]:
    """Return the 95th percentile of the seconds of batches from all over the files."""
    from torch.utils.data import DataLoader  # noqa: PLC0415

    dataset, _ = dataset_of(kind, source, directory)
    order = np.random.default_rng(seed).permutation(len(dataset))[: (COLD + 2) * batch]
    loader = DataLoader(dataset, batch, sampler=order.tolist())
    seconds, begin = [], time.perf_counter()
    for _ in loader:
        seconds.append(time.perf_counter() - begin)
        begin = time.perf_counter()
    return {"cold": float(np.percentile(seconds[2:], 95))}


def drop(work: Path) -> None:
    """Drop the tokens and loss masks from the page cache."""
    for path in (*work.glob("*.bin"), *work.glob("*.loss")):
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def tables(run: Run) -> Iterator[Table]:
    """Compare both in each case."""
    rows: list[list[str]] = []
    for number, (name, case) in enumerate(CASES.items()):
        work = run.directory / str(number)
        config, cache, masked = make(run, work, case)
        sources = {
            "megatron": (config, work / "megatron"),
            "distcache": (cache, ""),
            "distcache, loss masks": (masked, ""),
        }
        count = max(run.size(300) * 4096 // case.length, 10)
        for path in work.glob("*.bin"):
            path.read_bytes()  # into the page cache

        def chilled(kind: str, case: Case = case, work: Path = work, of: Any = sources) -> Any:
            drop(work)
            return process(cold, kind, *of[kind], case.batch, 1)

        found = run.in_turn(
            {
                kind: partial(process, reading, kind, *where, case.batch, count)
                for kind, where in sources.items()
            }
        )
        require_equal(name, *(figures["digest"] for figures in found.values()))
        late = run.in_turn({kind: partial(chilled, kind) for kind in sources})
        rows += [row_of(name, kind, found, late) for kind in sources]
    head = ["case", "", "samples/s", "", "one by one", "", "in a worker", ""]
    head += ["cold batch, 95th percentile", "", "open", "", "descriptors", "mappings"]
    yield Table("loading", head, rows)


def row_of(case: str, kind: str, found: dict[str, Figures], late: dict[str, Figures]) -> list[str]:
    """Return the row of a contender."""
    base, own = found["megatron"], found[kind]
    cells = [case, "Megatron-Core" if kind == "megatron" else kind]
    for figure in ("here", "single", "worker"):
        cells += [own.said(figure, ""), f"{own[figure] / base[figure]:.1f}x"]
    for first, mine, figure in ((late["megatron"], late[kind], "cold"), (base, own, "open")):
        cells += [mine.said(figure, "ms", 1e-3), f"{first[figure] / mine[figure]:.1f}x"]
    return [*cells, *(f"{own[name]:.0f}" for name in ("descriptors", "mappings"))]
