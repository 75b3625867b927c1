"""How localizing and building scale: simulated, and compared with nodes of the test cluster.

Measuring needs what tests/cluster needs: root, and `scripts/packages all`. The cluster's networks
are slowed down, so that they and not the machine's two cores decide.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.harness import Run, Table
from benchmarks.simulation.building import CASES, Filesystem, build_phases, plan_case
from benchmarks.simulation.localizing import TRANSPORTS, Site, simulate

MARKS = ("nodes", "ranks", "measured nodes")
NODES = [1, 8, 64, 512, 4096]
RANKS = [1, 4, 16, 64, 256, 1024]
SIZE = 20 << 30
GB = 1e9
SITES = {
    "large": Site(100 * GB, 5 * GB, 25 * GB, 3 * GB, 5e-6, 2.0),
    "small": Site(10 * GB, 1 * GB, 3 * GB, 1 * GB, 3e-5, 2.0),
}
FILESYSTEM = Filesystem(10 * GB, 1 * GB, 16, 3e-5)


def localizing() -> Table:
    """Simulate localizing."""
    rows = [
        [name, way, *(f"{simulate(way, site, SIZE, nodes):,.0f} s" for nodes in NODES)]
        for name, site in SITES.items()
        for way in TRANSPORTS
    ]
    return Table("nodes", ["site", "way", *(f"{nodes:,} nodes" for nodes in NODES)], rows, rounds=0)


def building() -> Table:
    """Simulate building."""
    rows = []
    for name, case in CASES.items():
        plan, layout = plan_case(*case)
        for ranks in RANKS:
            found = build_phases(plan, layout, ranks, FILESYSTEM)
            parts = (found.alone, found.examine, found.longest, found.write, found.messages)
            rows.append([name, f"{ranks:,}", *(f"{part:,.1f} s" for part in (*parts, found.total))])
    head = ["case", "ranks", "rank 0 alone", "examining", "longest rank", "writing", "messages"]
    return Table("ranks", [*head, "in all"], rows, rounds=0)


def measured(run: Run) -> Table:
    """Compare the simulation with the test cluster."""
    from benchmarks.simulation.measured import METHODS, NODES, SITE, measure  # noqa: PLC0415

    size, found = measure(run.directory, run.rounds)
    rows = []
    for method in METHODS:
        for nodes in NODES:
            taken = found[method, nodes]
            start = statistics.median(one.start for one in taken)
            way = {"localize": "mpi", "cp": "copy"}.get(method, method)
            seconds = statistics.median(one.seconds for one in taken)
            simulated = simulate(way, replace(SITE, start=start), size, nodes)
            read = statistics.median(one.read for one in taken) / size
            times = [f"{value:.1f} s" for value in (seconds, start, simulated)]
            ratio = f"{seconds / simulated:.2f}"
            rows.append([method, str(nodes), *times, ratio, f"{read:.2f} times"])
    head = ["method", "nodes", "measured", "to start", "simulated", "ratio", "bytes read"]
    return Table("measured nodes", head, rows)


def tables(run: Run) -> Iterator[Table]:
    """Simulate, then measure."""
    yield localizing()
    yield building()
    yield measured(run)
