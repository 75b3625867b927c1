"""Large corpora whose tokens nobody reads: a real `.idx` and a sparse `.bin`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from distcache.corpus import write_idx

__all__ = ["write_large"]


def write_large(prefix: Path, sequences: int, mean: float = 30.0) -> str:
    """Write a corpus with geometric lengths, some of them 0, and return its prefix."""
    random = np.random.default_rng(sequences)
    lengths = (random.geometric(1 / mean, sequences) - 1).astype(np.int32)
    write_idx(str(prefix), lengths, "u2")
    with open(f"{prefix}.bin", "wb") as stream:
        stream.truncate(2 * int(lengths.sum(dtype=np.int64)))
    return str(prefix)
