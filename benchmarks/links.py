"""One shuffle by one rank, by two, and what 8 to 1,024 take by links: from measured parts.

Measured: the shuffle of one rank; two ranks that split it by links, under mpiexec; what a rank of
many takes to go through all draws and to link its own; and what two ranks with as many steps
each take to follow them and to send what they leave. Modelled: the network between many, with so
many bytes for each step, and its latency.

    python benchmarks/links.py
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from distcache.builder.links import _link, shuffled_slice
from distcache.builder.section_slice import draw_bounds
from distcache.kernels import Mt19937
from distcache.ranks.connect import connect
from distcache.ranks.partition import slice_bounds

SEED = 1234
BYTES_OF_STEP = 30  # numbers and answers that go to others for each step
NETWORK = 5e9  # bytes per second of each rank
LATENCY = 5e-6  # seconds of a message
EXCHANGES = 40  # of a shuffle: rounds of links, and pieces


def timed(action: Callable[[], object]) -> float:
    """Return the seconds of an action."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def alone(size: int) -> float:
    """Return the seconds of the whole shuffle by one rank."""
    values = np.arange(size, dtype=np.uint32)
    return timed(lambda: Mt19937(SEED).shuffle(values))


def linking(size: int, ranks: int) -> float:
    """Return the seconds in which a rank of so many goes through all draws and links its own."""
    owners = draw_bounds(size, ranks)
    middle = ranks // 2
    return timed(lambda: _link(size, Mt19937(SEED), owners[middle], owners[middle + 1]))


def by_two(size: int) -> float:
    """Return the seconds of two ranks under mpiexec."""
    command = ["mpiexec", "-n", "2", sys.executable, __file__, "--rank", str(size)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout)


def run_rank(size: int) -> None:
    """Be one of the ranks; the first prints the seconds of the slowest."""
    communicator = connect()
    bounds = slice_bounds(size, communicator.size, 1 << 18)
    communicator.allgather(0, int, "starting")
    seconds = timed(lambda: shuffled_slice(communicator, size, Mt19937(SEED), bounds))
    slowest = max(communicator.allgather(seconds, float, "seconds"))
    if communicator.rank == 0:
        print(slowest)


def main() -> None:
    """Measure and model, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=80_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.rank is not None:
        run_rank(options.rank)
        return
    size, times = options.size, range(options.rounds)
    serial = statistics.median(alone(size) for _ in times)
    seconds = {1: serial, 2: statistics.median(by_two(size) for _ in times)}
    for ranks in (8, 32, 128, 512, 1024):
        own = size // ranks
        following = statistics.median(by_two(2 * own) - linking(2 * own, 2) for _ in times)
        sending = own * BYTES_OF_STEP / NETWORK + EXCHANGES * LATENCY * math.ceil(math.log2(ranks))
        linked = statistics.median(linking(size, ranks) for _ in times)
        seconds[ranks] = linked + max(following, 0) + sending
    if options.json:
        print(json.dumps({"size": size, "seconds": seconds}, indent=2))
        return
    print(f"{size:,} elements\n")
    print("| ranks | | ns per element | |")
    print("|--:|---|--:|--:|")
    for ranks, taken in seconds.items():
        how = {1: "measured, alone", 2: "measured, by links"}.get(ranks, "modelled, by links")
        print(f"| {ranks} | {how} | {1e9 * taken / size:.1f} | {serial / taken:.1f}x |")


if __name__ == "__main__":
    main()
