"""How long a build will take, and what to ask a scheduler for.

The constants are calibrated by ``benchmarks/estimates.py``, on a virtual machine whose memory is
expensive to touch; it shows that the estimate is right within a factor of two there.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from distcache.plan.assignment import Assignment
from distcache.plan.layout import Layout
from distcache.plan.model import Plan

__all__ = ["Estimate", "estimate"]

START: Final = 0.3  # seconds: Python, its imports, and joining the ranks
PER_CORPUS: Final = 2.5e-4  # opening an index, and its share of the tables
PER_ITEM: Final = 1e-4  # planning a section or a blend
PER_ARRAY: Final = 9e-5  # laying out an HDF5 dataset
PER_INDEX_BYTE: Final = 0.2e-9  # checking and digesting an index
PER_CACHE_BYTE: Final = 0.3e-9  # reading back and digesting what was written
# Seconds per predicted nanosecond: memory is touched for the first time, and disks are synced.
PER_BUSY: Final = 1.3e-9

# What is asked for leaves room: another machine, a busy filesystem, the page cache.
TIME_MARGIN: Final = 4.0
LEAST_MINUTES: Final = 10
MEMORY_MARGIN: Final = 1.25
NODE_MEMORY: Final = 512 << 20


class Estimate(msgspec.Struct, frozen=True):
    """What a build is expected to take, and what to ask for.

    Attributes
    ----------
    seconds : float
        Of the whole build.
    memory : int
        Bytes of the rank that takes most.
    minutes : int
        To ask for as ``--time``: several times the estimate.
    memory_gib : int
        To ask for as ``--mem``, of each node.
    """

    seconds: float
    memory: int
    minutes: int
    memory_gib: int


def estimate(plan: Plan, layout: Layout, work: Assignment, ranks_per_node: int) -> Estimate:
    """Foresee a build.

    Parameters
    ----------
    plan, layout : Plan, Layout
        What is built.
    work : Assignment
        Who builds what.
    ranks_per_node : int
        The most that a node has.

    Returns
    -------
    Estimate
        For the machine of the calibration, and a filesystem that is not the limit.
    """
    ranks = len(work.local)
    streams = ranks * work.threads
    index_bytes = sum(source.idx_size for source in plan.sources)
    arrays = sum(len(places) for places in layout.arrays)
    alone = START + PER_ITEM * len(plan.items) + PER_ARRAY * arrays
    shared = PER_CORPUS * len(plan.sources) + PER_INDEX_BYTE * index_bytes
    shared += PER_CACHE_BYTE * layout.tables_begin
    seconds = alone + shared / streams + PER_BUSY * max(work.busy)
    memory = max(work.memory)
    return Estimate(
        seconds=seconds,
        memory=memory,
        minutes=max(math.ceil(TIME_MARGIN * seconds / 60), LEAST_MINUTES),
        memory_gib=math.ceil((MEMORY_MARGIN * memory * ranks_per_node + NODE_MEMORY) / 2**30),
    )
