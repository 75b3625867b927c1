"""Packing documents into rows: the kernel, OLMo-core's packer, and Megatron-Bridge's.

Documents of log-normal lengths (600 tokens, sigma 1.2), rows of 4,096 tokens, longer documents cut
to a row for all. Medians of alternating rounds, in seconds of CPU; the packers are those that
`scripts/judges bridge-0.6.2` has unpacked, in Python. Bridge's is quadratic: it gets fewer
documents. Then the kernel alone, which also counts and shuffles, at 10^8 documents in two groups.

    python benchmarks/packing.py
"""

from __future__ import annotations

import argparse
import ast
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from machine import machine

from distcache.kernels import Mt19937, count_packed, fill_entries, pack_documents
from distcache.plan.packing import GROUP
from tests.judges.olmo import PACKER, new_packer

LENGTH = 4096
BRIDGE = PACKER.parents[1] / "bridge-0.3.1/megatron/bridge/data/datasets/packing_utils.py"


def lengths_of(count: int) -> Any:
    """Return lengths of documents."""
    random = np.random.default_rng(1)
    drawn = random.lognormal(np.log(600) - 0.72, 1.2, count)
    return np.clip(drawn, 1, LENGTH).astype(np.int32)


def kernel(lengths: Any) -> None:
    """Pack as a build does, once shuffled."""
    entries = np.empty(len(lengths), np.int64)
    fill_entries(lengths, 0, entries)
    found = count_packed(lengths, LENGTH, 0, True)
    documents, starts = np.empty(found.documents, np.int32), np.empty((found.rows, 2), np.int32)
    pack_documents(entries, LENGTH, 0, True, 0, documents, starts)


def olmo(lengths: Any) -> None:
    """Pack by OLMo-core."""
    ends = np.cumsum(lengths.astype(np.int64))
    new_packer(LENGTH).pack_documents(np.column_stack((ends - lengths, ends)))


def bridge() -> Callable[[Any], None]:
    """Return Megatron-Bridge's first-fit decreasing."""
    module = ast.parse(BRIDGE.read_text(encoding="utf-8"))
    needed = {"find_first_bin_that_fits", "first_fit", "first_fit_decreasing"}
    module.body = [node for node in module.body if getattr(node, "name", None) in needed]
    names: dict[str, Any] = {"List": list}
    exec(compile(module, str(BRIDGE), "exec"), names)
    return lambda lengths: names["first_fit_decreasing"](lengths.tolist(), LENGTH)


def compare(name: str, other: Callable[[Any], None], count: int, rounds: int) -> None:
    """Write the medians of both."""
    lengths = lengths_of(count)
    times: dict[str, list[float]] = {"kernel": [], name: []}
    for _ in range(rounds):
        for who, action in (("kernel", kernel), (name, other)):
            begin = time.process_time()
            action(lengths)
            times[who].append(time.process_time() - begin)
    own, theirs = (statistics.median(found) for found in times.values())
    print(
        f"{count:,} documents: {own:.4f} s, {name} {theirs:.2f} s, {theirs / own:.0f}x", flush=True
    )


def alone(count: int) -> None:
    """Write the seconds of the kernel for documents in groups."""
    lengths = lengths_of(count)
    for _ in range(2):
        spent = dict.fromkeys(("shuffling", "counting", "packing"), 0.0)
        for begin in range(0, count, GROUP):
            own = lengths[begin : begin + GROUP]
            entries = np.empty(len(own), np.int64)
            fill_entries(own, 0, entries)
            marks = [time.process_time()]
            Mt19937(5).shuffle(entries)
            marks.append(time.process_time())
            found = count_packed(own, LENGTH, 0, True)
            marks.append(time.process_time())
            documents = np.empty(found.documents, np.int32)
            starts = np.empty((found.rows, 2), np.int32)
            pack_documents(entries, LENGTH, 0, True, 0, documents, starts)
            marks.append(time.process_time())
            for name, first, last in zip(spent, marks[:-1], marks[1:], strict=True):
                spent[name] += last - first
    text = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in spent.items())
    print(f"{count:,} documents: {text}", flush=True)


def main() -> None:
    """Compare, then measure alone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        print(json.dumps(machine(Path(name))))
    compare("OLMo-core", olmo, 100_000, options.rounds)
    compare("OLMo-core", olmo, 1_000_000, options.rounds)
    compare("Megatron-Bridge", bridge(), 10_000, options.rounds)
    for count in (10**7, 10**8):
        alone(count)


if __name__ == "__main__":
    main()
