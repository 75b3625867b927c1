"""Large corpora whose tokens nobody reads: a real `.idx` and a sparse `.bin`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from distcache.corpus import write_idx


def write_large(prefix: Path, sequences: int, mean: float = 30.0) -> str:
    """Write a corpus with geometric lengths, some of them 0, and return its prefix."""
    random = np.random.default_rng(sequences)
    lengths = (random.geometric(1 / mean, sequences) - 1).astype(np.int32)
    write_idx(str(prefix), lengths, "u2")
    with open(f"{prefix}.bin", "wb") as stream:
        stream.truncate(2 * int(lengths.sum(dtype=np.int64)))
    return str(prefix)


def write_blend(directory: Path, *, weighted: bool) -> dict[str, Any]:
    """Write corpora, and return the configuration of a large blend over small sections of them."""
    sizes = np.random.default_rng(4).lognormal(9.8, 0.7, 24).astype(int)
    corpora: list[Any] = [
        write_large(directory / str(number), int(size)) for number, size in enumerate(sizes)
    ]
    if weighted:
        corpora = [
            {"path": path, "weight": float(size)} for path, size in zip(corpora, sizes, strict=True)
        ]
    return {
        "sequence_length": 8,
        "split": "1",
        "samples": {"train": 2_300_000 if weighted else None, "valid": 0, "test": 0},
        "blend": corpora,
        "tokenizer": {"class": "X"},
    }
