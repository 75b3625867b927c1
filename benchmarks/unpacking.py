"""Training from compressed MDS shards that are unpacked ahead of it, within a budget.

Writes zstd shards of documents, builds a cache with `order: windows`, and reads batches of 4
samples of 4,096 tokens in order, as fast as it can and at a steady pace, for some seconds, from
cold pages. Tells samples/s, the seconds that batches after the first were waited for, and the CPU
of training and of what unpacks: the node's fetcher. `--python`
compares another installation, in turn; `local` reads a `.bin` that was unpacked before.

    python benchmarks/unpacking.py --gib 1 --python OTHER/bin/python
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from buckets_peer import cpu_of

HERE = Path(__file__).resolve().parent
SHARD = 64 << 20  # bytes of a raw shard
DOCUMENT = 2098  # tokens, on average
WINDOW = 2
CORPORA = 2
BATCH = 4
SAMPLE = 4 * 4097  # bytes of i4 tokens


def read(cache: str, store: str, seconds: float, pace: float, budget: int) -> None:
    """Read, and write a line of JSON; run in a process of its own."""
    import distcache  # noqa: PLC0415
    from distcache.node.ahead.client import fetcher_status  # noqa: PLC0415

    warnings.simplefilter("ignore")
    dataset = distcache.open(cache, store).dataset("train")
    sampler: Any = distcache.ReadAhead(distcache.ResumableSampler(dataset, BATCH), dataset, budget)
    batches: Iterator[Any] = (dataset.__getitems__(indices) for indices in sampler)
    first = time.perf_counter()
    next(batches)
    begin = time.perf_counter()
    before = resource.getrusage(resource.RUSAGE_SELF)
    waits, samples = 0.0, 0
    while (now := time.perf_counter()) < begin + seconds and next(batches, None) is not None:
        waits += time.perf_counter() - now
        samples += BATCH
        if pace:
            time.sleep(max(begin + samples / pace - time.perf_counter(), 0))
    elapsed = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_SELF)
    status = fetcher_status(Path(store) / "ahead")
    found = {
        "first": begin - first,
        "waited": waits,
        "samples": samples,
        "samples/s": samples / elapsed,
        "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "fetcher": 0 if status is None else status.process,
    }
    print(json.dumps(found), flush=True)
    sys.stdin.readline()  # the fetcher lives until its CPU was looked up
    os._exit(0)


def write(work: Path, gib: float) -> list[Path]:
    """Write the corpora, and return their prefixes."""
    sys.path.insert(0, str(HERE.parent))
    from shards import TOKENS, zipf  # noqa: PLC0415

    from tests.support.mds_writer import write_mds  # noqa: PLC0415

    random = np.random.default_rng(1)
    pool = zipf(1 << 22, random)
    prefixes = []
    for number in range(CORPORA):
        count = int(gib * 2**30 / CORPORA / 4 / DOCUMENT)
        lengths = random.integers(100, 2 * DOCUMENT - 100, count)
        starts = random.integers(0, len(pool) - 2 * DOCUMENT, count)
        samples = [
            {"tokens": pool[at : at + size]} for at, size in zip(starts, lengths, strict=True)
        ]
        data = work / f"mds-{number}"
        write_mds(data, TOKENS, samples, codec="zstd", per_shard=SHARD // 4 // DOCUMENT)
        prefixes.append(work / f"c{number}")
        run(work, [sys.executable, "-m", "distcache", "index", "mds", data, "-o", prefixes[-1]])
    return prefixes


def run(work: Path, words: list[Any]) -> str:
    """Run a command, of the installation that its Python has."""
    done = subprocess.run(
        [str(w) for w in words], cwd=work, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def measure(
    work: Path, python: str, cache: Path, shards: str, seconds: float, pace: float, budget: int
) -> dict[str, float]:
    """Localize, read for some seconds, and return the figures."""
    store = work / "store"
    distcache = [python, "-m", "distcache"]
    run(work, [*distcache, "localize", cache, "--store", store, "--shards", shards])
    subprocess.run("sync; echo 1 > /proc/sys/vm/drop_caches", shell=True, check=False)
    words = [python, HERE / "unpacking.py", "--read", cache, store, seconds, pace, budget]
    reader = subprocess.Popen(
        [str(word) for word in words],
        cwd=work,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert reader.stdout is not None
    found: dict[str, float] = json.loads(reader.stdout.readline())
    helper = int(found["fetcher"])
    used = found.pop("samples") * SAMPLE / 1e9
    found["training, s a GB"] = found.pop("cpu") / used
    found["unpacking, s a GB"] = cpu_of(helper) / used if helper else 0.0
    reader.communicate("\n")
    if helper:
        time.sleep(12)  # it ends 10 s after its last client
    shutil.rmtree(store)
    found.pop("fetcher")
    return found


def main() -> None:
    """Compare, and write a line for each kind."""
    if sys.argv[1:2] == ["--read"]:
        cache, store, *numbers = sys.argv[2:]
        read(cache, store, float(numbers[0]), float(numbers[1]), int(numbers[2]))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=1.0, help="Size of the raw shards.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--python", action="append", default=[], help="Of another installation.")
    options = parser.parse_args()
    from machine import machine  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        print(json.dumps(machine(work)))
        prefixes = write(work, options.gib)
        fields = {
            "sequence_length": 4096,
            "split": "1",
            "order": "windows",
            "window": WINDOW,
            "samples": {"train": 400_000, "valid": 0, "test": 0},
            "blend": [{"path": str(prefix), "weight": 1.0} for prefix in prefixes],
        }
        (work / "c.json").write_text(json.dumps(fields), encoding="utf-8")
        run(work, [sys.executable, "-m", "distcache", "build", "c.json", "-o", work, "--name", "c"])
        budget = 2 * WINDOW * CORPORA * (SHARD + (8 << 20))
        pythons = [sys.executable, *options.python]
        kinds = [(python, "ahead", pace) for pace in (0.0, 64.0) for python in pythons]
        kinds.append((sys.executable, "compressed", 0.0))
        kinds.append((sys.executable, "compressed", 64.0))
        found: dict[Any, list[dict[str, float]]] = {kind: [] for kind in kinds}
        for _ in range(options.rounds):
            for (python, shards, pace), rows in found.items():
                rows.append(
                    measure(work, python, work / "c.h5", shards, options.seconds, pace, budget)
                )
        for (python, shards, pace), rows in found.items():
            what = "local" if shards == "compressed" else f"installation {pythons.index(python)}"
            median = {key: round(statistics.median(r[key] for r in rows), 2) for key in rows[0]}
            print(json.dumps({"what": what, "pace": pace or "full", **median}), flush=True)


if __name__ == "__main__":
    main()
