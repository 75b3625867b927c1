"""Seconds until MaxText's input pipeline has its first batch of a blend, on every host.

Of MaxText that builds its indices, in a loop of Python; that finds what ``distcache export --for
maxtext`` wrote; and of Grain that reads the cache itself. Each in a process of its own, in turn,
without what all three import. MaxText's own modules come out of its wheel; JAX is not needed.

    pip install grain==0.2.18
    scripts/judges build/judges 0.19.2
    python benchmarks/frameworks.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from corpora import generate
from machine import machine

ROOT = Path(__file__).parent.parent
BATCH = 8
KINDS = ("MaxText builds", "MaxText finds an export", "Grain reads the cache")
LENGTH = 2048


def first_batch(kind: str, facts: dict[str, Any]) -> float:
    """Return the seconds until a process has its first batch."""
    import grain  # noqa: PLC0415

    sys.path.insert(0, str(ROOT))
    import distcache  # noqa: PLC0415
    from tests.frameworks.judges import import_bare  # noqa: PLC0415

    source = import_bare("maxtext.input_pipeline._mmap_datasource", "maxtext")
    document = dict(facts["settings"])
    if kind == KINDS[0]:
        empty = tempfile.mkdtemp()
        document["grain_train_files"] = document["grain_train_files"].replace(
            facts["directory"], empty
        )
        document["blend_index_dir"] = None
    begin = time.perf_counter()
    if kind == KINDS[2]:
        dataset = distcache.open(facts["cache"]).numpy_dataset("train")
        batches = iter(grain.MapDataset.source(dataset).batch(BATCH).to_iter_dataset())
        next(batches)
        return time.perf_counter() - begin
    found = source.get_mmap_npy_dataset(
        document["grain_train_files"], False, LENGTH, 0, 1, 0, 1, 16, 500, None,
        document["blend_index_dir"], "train", lambda dataset, *_: dataset.to_iter_dataset(),
        num_samples=facts["samples"], seed=document["data_shuffle_seed"],
        split=document["mmap_npy_split"] or None,
    )  # fmt: skip
    samples = iter(found)
    for _ in range(BATCH):
        next(samples)
    return time.perf_counter() - begin


def main() -> None:
    """Make a blend and its cache, and measure in turn."""
    words = argparse.ArgumentParser()
    words.add_argument("--corpora", type=int, default=100)
    words.add_argument("--documents", type=int, default=20_000)
    words.add_argument("--samples", type=int, default=1_000_000)
    words.add_argument("--rounds", type=int, default=3)
    words.add_argument("--kind")
    words.add_argument("--facts", type=Path)
    options = words.parse_args()
    if options.kind is not None:
        print(first_batch(options.kind, json.loads(options.facts.read_text())))
        return
    with tempfile.TemporaryDirectory(prefix="distcache-bench-") as name:
        directory = Path(name)
        blend = [
            {
                "path": generate(directory / f"c{k}", options.documents, 900, k, real=k < 2),
                "weight": 1 + k % 7,
            }
            for k in range(options.corpora)
        ]
        fields = {
            "sequence_length": LENGTH,
            "split": "99,1,0",
            "samples": {"train": options.samples, "valid": 0, "test": 0},
            "blend": blend,
        }
        config = directory / "blend.json"
        config.write_text(json.dumps(fields))
        distcache = [sys.executable, "-m", "distcache"]
        begin = time.perf_counter()
        subprocess.run(
            [*distcache, "build", config, "-o", directory, "--name", "c", "--log-format", "none"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        built = time.perf_counter() - begin
        out = directory / "out"
        cache = directory / "c.h5"
        words_of_export = ["export", cache, "-o", out, "--for", "maxtext", "--json"]
        begin = time.perf_counter()
        done = subprocess.run(
            [*distcache, *words_of_export], check=True, capture_output=True, text=True
        )
        exported = time.perf_counter() - begin
        settings = yaml.safe_load("\n".join(json.loads(done.stdout)["arguments"]))
        facts = directory / "facts.json"
        facts.write_text(
            json.dumps(
                {
                    "settings": settings,
                    "directory": str(out),
                    "cache": str(cache),
                    "samples": options.samples,
                }
            )
        )
        seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for _ in range(options.rounds):
            for kind in KINDS:
                words_of_kind = ["--kind", kind, "--facts", facts]
                said = subprocess.run(
                    [sys.executable, __file__, *words_of_kind],
                    check=True,
                    capture_output=True,
                    text=True,
                )
                seconds[kind].append(float(said.stdout.split()[-1]))
        here = machine(directory)
    print(here)
    print(f"{options.corpora} corpora, {options.samples:,} samples of {LENGTH} tokens")
    print(f"once, before training, one core: build {built:.1f} s, export {exported:.1f} s")
    for kind, found in seconds.items():
        print(f"{kind:26} {statistics.median(found):9.2f} s")


if __name__ == "__main__":
    main()
