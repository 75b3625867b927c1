"""Megatron-Core's dataset and distcache's, through the same DataLoader, in turn in one process.

Corpora of real tokens in the page cache, sequences of 4096, batches of 8, no workers, no masks.
Every batch of the first round is compared. Opening is measured in processes of their own.

    python benchmarks/loading.py        # 2.2 GB in one corpus, and in 800
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")
import numpy as np
import torch
from corpora import generate
from loading_peer import megatron_dataset
from machine import machine
from torch.utils.data import DataLoader

import distcache

HERE = Path(__file__).parent
SEQUENCE_LENGTH = 4096
MEAN_TOKENS = 600
BATCH = 8
MANY = 800


def make_cache(work: Path, corpora: int, nbytes: int) -> tuple[Path, Path]:
    """Write corpora of so many bytes together and build their cache; return config and cache."""
    documents = nbytes // 2 // MEAN_TOKENS // corpora
    blend = []
    for number in range(corpora):
        prefix = work / f"corpus-{number}"
        generate(prefix, documents, MEAN_TOKENS, seed=number, real=True)
        blend.append({"path": str(prefix), "weight": 1.0 + number % 7})
    samples = int(0.9 * nbytes / 2 / SEQUENCE_LENGTH)
    fields = {
        "sequence_length": SEQUENCE_LENGTH,
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
    command = ["distcache", "export", str(work / "c.h5"), "--to", str(work / "megatron")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return config, work / "c.h5"


def run(loader: DataLoader[Any], batches: int) -> float:
    """Return samples per second of some batches."""
    iterator = iter(loader)
    next(iterator)
    begin = time.perf_counter()
    for _ in range(batches):
        next(iterator)
    return batches * BATCH / (time.perf_counter() - begin)


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


def measure(work: Path, corpora: int, nbytes: int, rounds: int, batches: int) -> dict[str, Any]:
    """Return medians of samples per second, and of seconds to open."""
    config, cache = make_cache(work, corpora, nbytes)
    touch(work)
    datasets = {
        "megatron-core": megatron_dataset(config, work / "megatron"),
        "distcache": distcache.open(cache).dataset("train"),
    }
    loaders = {name: DataLoader(data, batch_size=BATCH) for name, data in datasets.items()}
    require_equal(*loaders.values())
    speeds: dict[str, list[float]] = {name: [] for name in loaders}
    for _ in range(rounds):
        for name, loader in loaders.items():
            speeds[name].append(run(loader, batches))
    openings: dict[str, list[dict[str, Any]]] = {name: [] for name in loaders}
    for _ in range(rounds):
        openings["megatron-core"].append(opening("megatron", config, work / "megatron"))
        openings["distcache"].append(opening("distcache", cache))
    return {
        name: {
            "samples per second": statistics.median(speeds[name]),
            "seconds to open": statistics.median(found["seconds"] for found in openings[name]),
            "descriptors": openings[name][0]["descriptors"],
            "mappings": openings[name][0]["mappings"],
        }
        for name in loaders
    }


def opening(*words: object) -> dict[str, Any]:
    """Open in a process of its own, and read one sample."""
    command = [sys.executable, str(HERE / "loading_peer.py"), *map(str, words)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def rows(results: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield "| case | | samples/s | | open | | descriptors | mappings |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|"
    for case, result in results.items():
        base = result["megatron-core"]
        for name, found in result.items():
            speed, seconds = found["samples per second"], found["seconds to open"]
            yield (
                f"| {case} | {name} | {speed:,.0f} | {speed / base['samples per second']:.1f}x "
                f"| {seconds * 1000:.1f} ms | {base['seconds to open'] / seconds:.1f}x "
                f"| {found['descriptors']} | {found['mappings']} |"
            )


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
    for case, corpora in (("1 corpus", 1), (f"{MANY} corpora", MANY)):
        with tempfile.TemporaryDirectory() as name:
            results[case] = measure(
                Path(name), corpora, options.bytes, options.rounds, options.batches
            )
            facts = machine(Path(name))
    if options.json:
        print(json.dumps({"machine": facts, "results": results}, indent=2))
        return
    print(", ".join(f"{name}: {value}" for name, value in facts.items()), end="\n\n")
    print("\n".join(rows(results)))


if __name__ == "__main__":
    main()
