"""Corpora that tests build from: small, and odd in one way each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from distcache.corpus import bin_path, write_idx

_random = np.random.default_rng(20261121)

LENGTHS: dict[str, NDArray[np.int64]] = {
    "plain": _random.lognormal(4.0, 1.0, 300).astype(int) + 1,
    "second": _random.lognormal(3.0, 0.7, 900).astype(int) + 1,
    "third": _random.integers(1, 60, 2000),
    "holes": np.where(_random.random(500) < 0.4, 0, _random.integers(1, 90, 500)),
    "long": _random.integers(2000, 9000, 12),
    "tiny": _random.integers(1, 9, 7),
    "single": np.array([700]),
    "short": np.array([3]),
    "hollow": np.array([0, 0, 5, 0, 40, 0, 0]),
}


def blend_fields(corpora: dict[str, str]) -> dict[str, Any]:
    """Return a configuration with all splits, three corpora and several epochs."""
    weights = {"plain": 0.5, "second": 0.3, "holes": 0.2}
    return {
        "sequence_length": 32,
        "seed": 99,
        "split": "80,15,5",
        "samples": {"train": 4000, "valid": 300, "test": 40},
        "blend": [{"path": corpora[name], "weight": weight} for name, weight in weights.items()],
        "tokenizer": {"class": "NullTokenizer", "vocab_size": 30000},
    }


def mixed_lengths(corpora: dict[str, str]) -> dict[str, Any]:
    """Return a configuration of training alone, of documents of all lengths."""
    weights = {"plain": 0.5, "long": 0.3, "holes": 0.2}
    blend = [{"path": corpora[name], "weight": weight} for name, weight in weights.items()]
    fields = {"sequence_length": 64, "samples": {"train": 4100}, "split": "1,0,0"}
    return fields | {"blend": blend, "tokenizer": {"class": "X"}}


def write_lengths(
    prefix: Path, lengths: NDArray[np.int64], dtype: str = "u2", first: int = 0
) -> str:
    """Write a corpus whose tokens count up from a first one, and return its prefix."""
    tokens = (first + np.arange(int(lengths.sum()))) % 30_000
    write_corpus(str(prefix), np.split(tokens.astype(dtype), np.cumsum(lengths)[:-1]), dtype)
    return str(prefix)


def write_corpora(directory: Path) -> dict[str, str]:
    """Write every corpus of `LENGTHS` and return the prefixes by name."""
    return {
        name: write_lengths(directory / name, lengths, "i4" if name == "long" else "u2")
        for name, lengths in LENGTHS.items()
    }


def write_corpus(
    prefix: str, documents: Iterable[Sequence[int] | NDArray[np.generic]], dtype: DTypeLike
) -> None:
    """Write documents of one sequence each as a corpus."""
    arrays = [np.asarray(tokens, dtype) for tokens in documents]
    Path(bin_path(prefix)).write_bytes(b"".join(array.tobytes() for array in arrays))
    write_idx(prefix, np.array([len(array) for array in arrays], "<i4"), dtype)
