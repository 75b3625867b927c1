"""Bytes of all ranks, by MPI: of all sizes, also of ranks that have none."""

from __future__ import annotations

import sys

import pytest

from tests.support.processes import LAUNCHERS, start

PROGRAM = """
import numpy as np
from distcache.ranks.mpi import MpiCommunicator

ranks = MpiCommunicator()
for turn, size in enumerate((0, 1, 5_000, 3_000_001)):
    counts = np.array([size * (rank % 3) for rank in range(ranks.size)])
    expected = np.random.default_rng(turn).integers(0, 256, int(counts.sum()), np.uint8)
    end = int(counts[: ranks.rank + 1].sum())
    own = expected[end - counts[ranks.rank] : end]
    assert np.array_equal(ranks.allgather_bytes(own, counts, "bytes"), expected), size
print("equal")
"""


@pytest.mark.few(2)
@pytest.mark.parametrize("ranks", [4, 2, 7])
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_bytes_are_equal(launcher: str, ranks: int) -> None:
    """On every rank, in the order of the ranks."""
    done = start([], ranks, launcher, program=[sys.executable, "-c", PROGRAM])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("equal") == ranks  # lines of ranks may be mixed
