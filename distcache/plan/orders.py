"""The orders of samples: what each promises, what it needs, and what builds it.

A new order is a function that builds a section, one of its memory in `distcache.plan.memory`, an
entry in this table, and its name in `distcache.plan.config.Shuffle`, of at most eight letters:
the cache file has no room for more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from distcache.plan.memory import memory_of_megatron, memory_of_packed, memory_of_passes
from distcache.plan.model import SectionPlan


@dataclass(frozen=True)
class SectionOrder:
    """How the sections of a cache are shuffled and cut."""

    # Function that builds a section: ``module:name``, which only a build imports. It is called as
    # ``build(section, idx, shards, places, file, workers)``, and returns the digests of the arrays.
    build: str
    # bytes of a rank that builds a section with so many threads
    memory: Callable[[SectionPlan, int], int]
    can_be_split: bool = False  # all ranks can build one section together
    # Small sections are built several at a time, by `distcache.builder.work`.
    has_runs: bool = False
    # Each pass is complete before the next one begins: none is shuffled apart, no partial sample is
    # kept, and a data set is the first samples of the section, as many as were asked for. Else as
    # Megatron does it.
    whole_passes: bool = True
    has_windows: bool = False  # `Config.window` is a part of it
    is_shuffled: bool = True  # False: a pass has the order of the corpus
    has_rows: bool = True  # samples of several columns have this order, too
    has_bounds: bool = False  # samples of tokens are shuffled within passes or windows
    is_packed: bool = False  # samples are rows of whole documents: see `distcache.plan.packing`


ORDERS: Final = {
    "megatron": SectionOrder(
        "distcache.builder.sections:build_section",
        memory_of_megatron,
        can_be_split=True,
        has_runs=True,
        whole_passes=False,
        has_rows=False,
    ),
    "passes": SectionOrder(
        "distcache.builder.passes:build_passes", memory_of_passes, has_bounds=True
    ),
    "windows": SectionOrder(
        "distcache.builder.passes:build_passes",
        memory_of_passes,
        has_windows=True,
        has_bounds=True,
    ),
    "none": SectionOrder(
        "distcache.builder.passes:build_passes", memory_of_passes, is_shuffled=False
    ),
    "packed": SectionOrder(
        "distcache.builder.packed:build_packed",
        memory_of_packed,
        has_rows=False,
        is_packed=True,
    ),
}
