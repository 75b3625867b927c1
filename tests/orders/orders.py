"""The orders of samples as a table, small corpora whose tokens say where they are from, and truth.

A new order is a row, or several; `test_orders.py`, `ledger/test_trace.py`, `ledger/test_report.py`
and `train/test_traced.py` have what holds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distcache.cache import open_cache
from distcache.cache.contents import Cache
from distcache.cache.split_members import SplitMembers
from distcache.corpus import open_idx
from tests.support import here
from tests.support.corpora import write_corpus

LENGTH = 16


class Order(NamedTuple):
    """An order of samples."""

    fields: dict[str, Any]
    grows: bool = True  # more samples change none of those before, in passes of their own
    packs: bool = False  # whole documents, so that a sample is no run of tokens


PHASES: dict[str, Any] = {
    "phases": [{"samples": 120, "weights": [5, 1, 0]}, {"samples": 90, "weights": [1, 2, 2]}]
}
ORDERS: dict[str, Order] = {
    "megatron": Order({}, grows=False),
    "no extra token": Order({"add_extra_token": False}, grows=False),
    "passes": Order({"shuffle": "passes"}),
    "passes, no extra token": Order({"shuffle": "passes", "add_extra_token": False}),
    "none": Order({"shuffle": "none"}),
    "windows": Order({"shuffle": "windows", "window": 40}),
    "packed": Order({"pack": True}, packs=True),
    "packed, cut": Order({"pack": {"documents": 2}}, packs=True),
    "packed, padded": Order({"pack": {"pad_to_multiple_of": 4}}, packs=True),
    "phases": Order(PHASES, grows=False),
    "passes in phases": Order({"shuffle": "passes", **PHASES}, grows=False),
    "none in phases": Order({"shuffle": "none", **PHASES}, grows=False),
    "packed in phases": Order({"pack": True, **PHASES}, grows=False, packs=True),
}


def write_numbered(directory: Path, seed: int = 3) -> list[str]:
    """Write three corpora, each of whose tokens is its own running number."""
    random = np.random.default_rng(seed)
    directory.mkdir(parents=True, exist_ok=True)
    prefixes = []
    for name, most, count in (("short", 9, 200), ("mixed", 40, 90), ("long", 130, 40)):
        lengths = random.integers(0, most, count)
        tokens = np.split(np.arange(int(lengths.sum())), np.cumsum(lengths)[:-1])
        write_corpus(str(directory / name), tokens, "i4")
        prefixes.append(str(directory / name))
    return prefixes


def fields_of(corpora: Path, case: str) -> dict[str, Any]:
    """Return the configuration of a case, over these corpora."""
    prefixes = [str(corpora / name) for name in ("short", "mixed", "long")]
    blend: list[Any] = [{"path": path, "weight": 1.0 + n} for n, path in enumerate(prefixes)]
    samples = {"train": 250, "valid": 20, "test": 0}
    if "phases" in ORDERS[case].fields:
        blend, samples = prefixes, {"valid": 20, "test": 0}
    return {
        "sequence_length": LENGTH,
        "seed": 5,
        "split": "80,20,0",
        "mid_level_dataset_surplus": 0.5,
        "samples": samples,
        "blend": blend,
    } | ORDERS[case].fields


def build_numbered(directory: Path, case: str = "megatron", **more: Any) -> Path:
    """Write the corpora, and build a cache of them; fields that are None are left out."""
    write_numbered(directory / "corpora")
    fields = fields_of(directory / "corpora", case) | more
    given = {name: value for name, value in fields.items() if value is not None}
    return Path(here.build(given, directory / "caches", "c").path)


class Tokens:
    """The tokens of samples, found in the plainest way."""

    def __init__(self, path: Path, split: str = "train", number: int = 0) -> None:
        self.cache: Cache = open_cache(path)
        self.members = SplitMembers(self.cache, split, number)
        self.idx = [open_idx(prefix) for prefix in self.cache.prefixes]
        # The tokens of a sequence are the running numbers from here on.
        self.starts = [np.concatenate([[0], np.cumsum(idx.lengths)]) for idx in self.idx]

    def of(self, position: int) -> tuple[int, NDArray[np.int64]]:
        """Return the corpus of a sample, and its tokens with the extra one.

        A sample of padded documents has none: its loss ends with each document.
        """
        members, samples = self.members.look_up(np.array([position]))
        section, source = self.members.pairs[int(members[0])]
        arrays = {
            name: self.cache.read(view)
            for name, view in self.cache.arrays("sections", section).items()
        }
        row = int(arrays["shuffle_index"][int(samples[0])])
        (first, begin), (last, end) = arrays["sample_index"][row : row + 2].tolist()
        tokens: list[int] = []
        for place in range(first, last + 1):
            sequence = int(arrays["document_index"][place])
            start = int(self.starts[source][sequence])
            low = begin if place == first else 0
            high = int(self.idx[source].lengths[sequence])
            if place == last:
                ends = first < last and "multiple" in self.cache.identity.get("packing", {})
                high = end + int(self.cache.add_extra_token and not ends)
            tokens += range(start + low, start + high)
        return source, np.array(tokens, np.int64)

    def has_extra(self, tokens: NDArray[np.int64]) -> bool:
        """Return whether a sample has a token that is only a label."""
        if "multiple" in self.cache.identity.get("packing", {}):
            return len(tokens) > LENGTH
        return self.cache.add_extra_token
