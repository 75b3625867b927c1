"""Long broadcasts go from rank to rank, short ones as the library does it; with the same bytes."""

from __future__ import annotations

import sys

import pytest

from tests.support.processes import LAUNCHERS, start

pytestmark = pytest.mark.mpi

PROGRAM = """
import collections, sys, time
import numpy as np
from distcache.ranks.mpi import CHAIN_FROM, CHAIN_PIECE, TAGS, MpiCommunicator

SIZES = (0, 1, CHAIN_FROM - 1, CHAIN_FROM, CHAIN_FROM + CHAIN_PIECE, 3 * CHAIN_FROM + 5)
ranks = MpiCommunicator()
ranks._tag = TAGS - 7  # so that the tags begin again
going = collections.deque()

def expected(number, size):
    return np.random.default_rng(number).integers(0, 256, size, np.uint8)

def end_first():
    number, data, pending = going.popleft()
    while not pending.done():
        time.sleep(1e-4)
    assert np.array_equal(data, expected(number, data.size)), number

for number in range(5 * len(SIZES)):
    root, size = number % ranks.size, SIZES[number % len(SIZES)]
    data = expected(number, size) if root == ranks.rank else np.zeros(size, np.uint8)
    going.append((number, data, ranks.start_broadcast(data, root)))
    if len(going) > 1 + ranks.rank % 2:  # ranks are not equally fast
        end_first()
while going:
    end_first()
print("equal")
"""


@pytest.mark.few(2)
@pytest.mark.parametrize("ranks", [4, 2, 7])
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_bytes_are_equal(launcher: str, ranks: int) -> None:
    """From every rank, of all sizes, several at a time."""
    done = start([], ranks, launcher, program=[sys.executable, "-c", PROGRAM])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("equal") == ranks  # lines of ranks may be mixed
