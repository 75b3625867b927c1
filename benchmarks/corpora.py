"""Generated corpora, configurations of them and their caches, for benchmarks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import command
from distcache.corpus import write_idx

SIGMA = 1.0
PIECE = 1 << 24
QUIET = ("--log-format", "none")


def generate(prefix: Path, documents: int, mean: float, seed: int, *, real: bool = False) -> str:
    """Write a corpus of documents with log-normal lengths, and return its prefix.

    Parameters
    ----------
    prefix : Path
        Path without suffix.
    documents : int
        How many, of one sequence each.
    mean : float
        Mean length in tokens of two bytes.
    seed : int
        Of the lengths.
    real : bool
        Whether there are tokens, or only holes in their place.
    """
    random = np.random.default_rng(seed)
    drawn = random.lognormal(np.log(mean) - SIGMA**2 / 2, SIGMA, documents)
    lengths = np.clip(drawn, 1, 2**31 - 1).astype(np.int32)
    prefix.parent.mkdir(parents=True, exist_ok=True)
    write_idx(str(prefix), lengths, "u2")
    with open(f"{prefix}.bin", "wb") as stream:
        left = int(lengths.sum(dtype=np.int64))
        stream.truncate(2 * left)
        while real and left:
            count = min(left, PIECE)
            stream.write(random.integers(0, 30_000, count, np.uint16))
            left -= count
    return str(prefix)


def blend_of(
    directory: Path, corpora: int, documents: int, sigma: float = 1.0, *, real: bool = False
) -> list[dict[str, Any]]:
    """Generate corpora of so many documents each, of 600 tokens, with log-normal weights."""
    random = np.random.default_rng(0)
    return [
        {
            "path": generate(directory / f"corpus-{number}", documents, 600, number, real=real),
            "weight": float(random.lognormal(0, sigma)),
        }
        for number in range(corpora)
    ]


def write_config(
    path: Path, blend: Sequence[Any], train: int, others: int = 0, **more: Any
) -> Path:
    """Write a configuration; of samples for validation there are as many as for tests."""
    fields = {
        "sequence_length": 4096,
        "seed": 1234,
        "split": "98,1,1" if others else "1,0,0",
        "mid_level_dataset_surplus": 0.5,  # so that small splits of many corpora do not run short
        "samples": {"train": train, "valid": others, "test": others},
        "blend": blend,
        "tokenizer": {"class": "NullTokenizer"},
    }
    path.write_text(json.dumps(fields | more), encoding="utf-8")
    return path


def build(config: Path, directory: Path, name: str = "c") -> Path:
    """Build a cache, and return its path."""
    command("distcache", "build", config, "-o", directory, "--name", name, *QUIET)
    return directory / f"{name}.h5"
