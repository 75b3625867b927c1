"""Packing documents into rows: the kernel, OLMo-core's packer, and Megatron-Bridge's.

Documents of log-normal lengths (600 tokens, sigma 1.2), rows of 4,096 tokens, longer documents cut
to a row for all; seconds of CPU. The packers of others are Python. The
kernel also counts and shuffles, at 10^8 documents in groups.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.harness import Run, Table, factor, process, timed
from distcache.kernels import Mt19937, count_packed, fill_entries, pack_documents
from distcache.plan.packing import GROUP
from tests.judges.bare_import import PACKER, new_packer

MARKS = ("packing",)
JUDGE = "bridge-0.6.2"
LENGTH = 4096
BRIDGE = PACKER.parents[1] / "bridge-0.6.2/megatron/bridge/data/packing/algorithms.py"


def lengths_of(count: int) -> Any:
    """Return lengths of documents."""
    random = np.random.default_rng(1)
    drawn = random.lognormal(np.log(600) - 0.72, 1.2, count)
    return np.clip(drawn, 1, LENGTH).astype(np.int32)


def kernel(count: int) -> dict[str, float]:
    """Pack as a build does, in groups; tell shuffling and counting apart."""
    lengths = lengths_of(count)
    found = dict.fromkeys(("shuffling", "counting", "packing"), 0.0)
    for begin in range(0, count, GROUP):
        own = lengths[begin : begin + GROUP]
        entries = np.empty(len(own), np.int64)
        fill_entries(own, 0, entries)
        found["shuffling"] += timed(lambda: Mt19937(5).shuffle(entries))["cpu"]  # noqa: B023
        found["counting"] += timed(lambda: count_packed(own, LENGTH, 0, True, 1))["cpu"]  # noqa: B023
        sizes = count_packed(own, LENGTH, 0, True, 1)
        rows = np.empty(sizes.documents, np.int32), np.empty((sizes.rows, 2), np.int32)
        pack = partial(pack_documents, entries, LENGTH, 0, True, 1, 0, *rows)
        found["packing"] += timed(pack)["cpu"]
    return found | {"cpu": sum(found.values())}


def olmo(count: int) -> dict[str, float]:
    """Pack by OLMo-core."""
    lengths = lengths_of(count)
    ends = np.cumsum(lengths.astype(np.int64))
    packer = new_packer(LENGTH)
    return timed(lambda: packer.pack_documents(np.column_stack((ends - lengths, ends))))


def bridge(count: int) -> dict[str, float]:
    """Pack by Megatron-Bridge's first-fit decreasing."""
    module = ast.parse(BRIDGE.read_text(encoding="utf-8"))
    needed = {"_SegmentTree", "first_fit", "first_fit_decreasing"}
    module.body = [node for node in module.body if getattr(node, "name", None) in needed]
    names: dict[str, Any] = {"List": list}
    exec(compile(module, str(BRIDGE), "exec"), names)
    return timed(lambda: names["first_fit_decreasing"](lengths_of(count).tolist(), LENGTH))


def tables(run: Run) -> Iterator[Table]:
    """Compare, then measure the kernel alone."""
    rows = []
    for count, name, other in (
        (100_000, "Megatron-Bridge 0.6.2, first-fit decreasing", bridge),
        (100_000, "OLMo-core 3.0, best-fit decreasing", olmo),
        (1_000_000, "OLMo-core 3.0", olmo),
    ):
        size = run.size(count)
        cases = {"kernel": kernel, "other": other}
        found = run.in_turn({who: partial(process, action, size) for who, action in cases.items()})
        theirs = f"{name}: {found['other'].said('cpu')}"
        ratio = factor(found["other"], found["kernel"], "cpu")
        rows.append([f"{size:,}", found["kernel"].said("cpu"), theirs, ratio])
    size = run.size(10**8)
    alone = run.in_turn({"kernel": lambda: process(kernel, size)})["kernel"]
    parts = ", ".join(f"{part} {alone.said(part)}" for part in ("shuffling", "counting"))
    rows.append([f"{size:,}, with {parts}", alone.said("cpu"), "", ""])
    yield Table("packing", ["documents", "distcache", "the other", ""], rows)
