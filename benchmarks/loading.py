"""Megatron-Core's dataset and distcache's, through the same DataLoader, in turn in one process.

Corpora of real tokens in the page cache, no masks; in the training process, and in one worker of
it. The first batches are compared. Then the `.bin` files are dropped from the page cache, and
batches of both are timed one by one. Opening is measured in processes of their own.

    python benchmarks/loading.py        # 2.2 GB in one corpus, and in 800
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

warnings.simplefilter("ignore")
import numpy as np
import torch
from corpora import generate
from loading_peer import megatron_dataset
from machine import machine
from torch.utils.data import DataLoader

import distcache

HERE = Path(__file__).parent
MEAN_TOKENS = 600


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


def make_cache(work: Path, case: Case, nbytes: int) -> tuple[Path, Path]:
    """Write corpora of so many bytes together and build their cache; return config and cache."""
    documents = nbytes // 2 // MEAN_TOKENS // case.corpora
    blend = []
    for number in range(case.corpora):
        prefix = work / f"corpus-{number}"
        generate(prefix, documents, MEAN_TOKENS, seed=number, real=True)
        blend.append({"path": str(prefix), "weight": 1.0 + number % 7})
    samples = int(0.9 * nbytes / 2 / case.length)
    fields = {
        "sequence_length": case.length,
        "seed": 1234,
        "split": "1,0,0",
        "mid_level_dataset_surplus": 0.5,
        "samples": {"train": samples, "valid": 0, "test": 0},
        "blend": blend,
        "tokenizer": {"class": "NullTokenizer"},
    }
    config = work / "config.json"
    config.write_text(json.dumps(fields), encoding="utf-8")
    command = ["distcache", "build", str(config), "-o", str(work), "--name", "c", "--log-format"]
    subprocess.run([*command, "none"], check=True, stdout=subprocess.DEVNULL)
    command = ["distcache", "export", str(work / "c.h5"), "-o", str(work / "megatron")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return config, work / "c.h5"


def run(loader: DataLoader[Any], batches: int) -> float:
    """Return samples per second of some batches."""
    iterator = iter(loader)
    next(iterator)
    begin = time.perf_counter()
    for _ in range(batches):
        next(iterator)
    return batches * loader.batch_size / (time.perf_counter() - begin)


def cold_latency(kind: str, work: Path, case: Case, seed: int) -> float:
    """Return the 95th percentile of the seconds of a batch whose tokens are on the disk.

    In a process of its own: what another one has mapped is not dropped from the page cache.
    """
    for path in work.glob("*.bin"):
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    words = [work / "config.json", work / "megatron"] if kind == "megatron" else [work / "c.h5"]
    found = opening("cold-" + kind, *words, case.batch, seed)
    return float(found["95th percentile"])


def require_equal(theirs: Any, ours: Any) -> None:
    """Compare batches of both."""
    for expected, found, _ in zip(theirs, ours, range(20), strict=False):
        for name, value in expected.items():
            if not torch.equal(value, found[name]):
                sys.exit(f"{name} differs")


def touch(work: Path) -> None:
    """Read all tokens once, so that they are in the page cache."""
    for path in work.glob("*.bin"):
        np.fromfile(path, np.uint16)


def measure(work: Path, case: Case, nbytes: int, rounds: int, batches: int) -> dict[str, Any]:
    """Return medians of samples per second, and of seconds to open."""
    config, cache = make_cache(work, case, nbytes)
    touch(work)
    datasets = {
        "megatron-core": megatron_dataset(config, work / "megatron"),
        "distcache": distcache.open(cache).dataset("train"),
    }
    loaders, workers = (
        {name: DataLoader(data, case.batch, num_workers=count) for name, data in datasets.items()}
        for count in (0, 1)
    )
    require_equal(*loaders.values())
    batches = max(batches * 4096 // case.length, 10)
    figures: dict[str, dict[str, list[float]]] = {
        name: {"here": [], "worker": [], "cold": []} for name in loaders
    }
    for turn in range(rounds):
        for name in sorted(loaders, reverse=turn % 2 == 0):
            figures[name]["here"].append(run(loaders[name], batches))
            figures[name]["worker"].append(run(workers[name], batches))
    del loaders, workers, datasets  # Megatron's maps the files, which could not be dropped then
    gc.collect()
    for turn in range(rounds):
        for name in sorted(figures, reverse=turn % 2 == 0):
            kind = name.removesuffix("-core")
            figures[name]["cold"].append(cold_latency(kind, work, case, turn))
    openings: dict[str, list[dict[str, Any]]] = {name: [] for name in figures}
    for _ in range(rounds):
        openings["megatron-core"].append(opening("megatron", config, work / "megatron"))
        openings["distcache"].append(opening("distcache", cache))
    return {
        name: {
            "samples per second": statistics.median(figures[name]["here"]),
            "with a worker": statistics.median(figures[name]["worker"]),
            "cold p95": statistics.median(figures[name]["cold"]),
            "seconds to open": statistics.median(found["seconds"] for found in openings[name]),
            "descriptors": openings[name][0]["descriptors"],
            "mappings": openings[name][0]["mappings"],
        }
        for name in figures
    }


def opening(*words: object) -> dict[str, Any]:
    """Open in a process of its own, and read one sample."""
    command = [sys.executable, str(HERE / "loading_peer.py"), *map(str, words)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def rows(results: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield (
        "| case | | samples/s | | in a worker | | cold batch, 95th percentile | | open | "
        "| descriptors | mappings |"
    )
    yield "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    for case, result in results.items():
        base = result["megatron-core"]
        for name, found in result.items():
            cells = [case, name]
            for figure in ("samples per second", "with a worker"):
                cells += [f"{found[figure]:,.0f}", f"{found[figure] / base[figure]:.1f}x"]
            for figure in ("cold p95", "seconds to open"):
                cells += [f"{1000 * found[figure]:.1f} ms", f"{base[figure] / found[figure]:.1f}x"]
            cells += [str(found["descriptors"]), str(found["mappings"])]
            yield f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure both cases, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bytes", type=int, default=2_200_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tempfile.mktemp()}", rank=0, world_size=1
    )
    results = {}
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as work:
            results[name] = measure(
                Path(work), case, options.bytes, options.rounds, options.batches
            )
            facts = machine(Path(work))
    if options.json:
        print(json.dumps({"machine": facts, "results": results}, indent=2))
        return
    print(", ".join(f"{name}: {value}" for name, value in facts.items()), end="\n\n")
    print("\n".join(rows(results)))


if __name__ == "__main__":
    main()
