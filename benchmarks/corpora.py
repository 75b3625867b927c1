"""Generated corpora: real `.idx` files, and `.bin` files of tokens or, where none reads, holes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from distcache.corpus import write_idx

SIGMA = 1.0
PIECE = 1 << 24


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
    write_idx(str(prefix), lengths, "u2")
    with open(f"{prefix}.bin", "wb") as stream:
        left = int(lengths.sum(dtype=np.int64))
        stream.truncate(2 * left)
        while real and left:
            count = min(left, PIECE)
            stream.write(random.integers(0, 30_000, count, np.uint16))
            left -= count
    return str(prefix)
