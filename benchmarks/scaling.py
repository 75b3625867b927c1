"""How localizing and building scale: tables and plots for docs/scaling.md.

    python benchmarks/scaling.py [--docs DIR]        simulate 1 to 4,096 nodes, 1 to 1,024 ranks
    python benchmarks/scaling.py --measure           compare with 1 to 32 nodes of the test cluster

Measuring needs what tests/cluster needs: root, and `scripts/packages test`. The cluster's networks
are slowed down, so that they and not the machine's two cores decide.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from simulation.building import CASES, Filesystem, build_phases, plan_case
from simulation.localizing import TRANSPORTS, Site, simulate

NODES = [1, 8, 64, 512, 4096]
RANKS = [1, 4, 16, 64, 256, 1024]
SIZE = 20 << 30
GB = 1e9
SITES = {
    "large": Site(100 * GB, 5 * GB, 25 * GB, 3 * GB, 5e-6, 2.0),
    "small": Site(10 * GB, 1 * GB, 3 * GB, 1 * GB, 3e-5, 2.0),
}
FILESYSTEM = Filesystem(10 * GB, 1 * GB, 16, 3e-5)


def localizing_rows() -> Iterator[str]:
    """Yield the table of localizing."""
    yield "| site | transport | " + " | ".join(f"{nodes:,} nodes" for nodes in NODES) + " |"
    yield "|---|---|" + "--:|" * len(NODES)
    for name, site in SITES.items():
        for transport in TRANSPORTS:
            cells = [f"{simulate(transport, site, SIZE, nodes):,.0f} s" for nodes in NODES]
            yield f"| {name} | {transport} | {' | '.join(cells)} |"


def building_rows() -> Iterator[str]:
    """Yield the table of building."""
    yield "| case | ranks | rank 0 alone | examining | longest rank | writing | messages | in all |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|"
    for name, case in CASES.items():
        plan, layout = plan_case(*case)
        for ranks in RANKS:
            found = build_phases(plan, layout, ranks, FILESYSTEM)
            parts = (found.alone, found.examine, found.longest, found.write, found.messages)
            cells = " | ".join(f"{part:,.1f} s" for part in (*parts, found.total))
            yield f"| {name} | {ranks:,} | {cells} |"


def _pyplot() -> Any:
    """Return matplotlib, which draws the same file for the same figures."""
    import matplotlib  # noqa: PLC0415

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "distcache"
    from matplotlib import pyplot  # noqa: PLC0415

    return pyplot


def plot(directory: Path) -> None:
    """Draw both as scaling-localizing.svg and scaling-building.svg."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(1, len(SITES), figsize=(10, 4), sharey=True)
    counts = [2**power for power in range(13)]
    for axis, (name, site) in zip(axes, SITES.items(), strict=True):
        for transport in TRANSPORTS:
            seconds = [simulate(transport, site, SIZE, nodes) for nodes in counts]
            axis.loglog(counts, seconds, label=transport, base=2)
        axis.set(title=f"{name} site", xlabel="nodes", ylabel="seconds for 20 GiB")
        axis.set_yscale("log", base=10)
        axis.legend()
    figure.savefig(directory / "scaling-localizing.svg", metadata={"Date": None})
    figure, axis = pyplot.subplots(figsize=(6, 4))
    counts = [2**power for power in range(11)]
    for name, case in CASES.items():
        plan, layout = plan_case(*case)
        totals = [build_phases(plan, layout, ranks, FILESYSTEM).total for ranks in counts]
        axis.loglog(counts, totals, label=name, base=2)
    axis.set(xlabel="ranks", ylabel="seconds")
    axis.set_yscale("log", base=10)
    axis.legend(fontsize="small")
    figure.savefig(directory / "scaling-building.svg", metadata={"Date": None})


def measured_rows(rounds: int, docs: Path | None) -> Iterator[str]:
    """Yield the table that compares the simulation with the test cluster, and draw it."""
    from simulation.measured import METHODS, NODES, SITE, measure  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="distcache-scaling-") as base:
        size, found = measure(Path(base), rounds)
    yield f"{size:,} bytes"
    yield "| method | nodes | measured | to start | simulated | ratio | bytes read |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    measured: dict[str, list[float]] = {method: [] for method in METHODS}
    expected: dict[str, list[float]] = {method: [] for method in METHODS}
    for method in METHODS:
        for nodes in NODES:
            taken = found[method, nodes]
            start = statistics.median(one.start for one in taken)
            transport = {"localize": "mpi", "cp": "copy"}.get(method, method)
            seconds = statistics.median(one.seconds for one in taken)
            simulated = simulate(transport, replace(SITE, start=start), size, nodes)
            measured[method].append(seconds)
            expected[method].append(simulated)
            read = statistics.median(one.read for one in taken) / size
            cells = [f"{seconds:.1f} s", f"{start:.1f} s", f"{simulated:.1f} s"]
            cells += [f"{seconds / simulated:.2f}", f"{read:.2f} times"]
            yield f"| {method} | {nodes} | {' | '.join(cells)} |"
    if docs:
        plot_measured(docs, NODES, measured, expected)


def plot_measured(
    directory: Path,
    nodes: Sequence[int],
    measured: dict[str, list[float]],
    expected: dict[str, list[float]],
) -> None:
    """Draw what was measured and simulated as scaling-measured.svg."""
    pyplot = _pyplot()
    figure, axis = pyplot.subplots(figsize=(6, 4))
    for method, seconds in measured.items():
        (line,) = axis.loglog(nodes, expected[method], "--", linewidth=1)
        axis.loglog(nodes, seconds, "o", color=line.get_color(), label=method)
    axis.set(xlabel="nodes", ylabel="seconds; lines: simulated")
    axis.set_xscale("log", base=2)
    axis.legend()
    figure.savefig(directory / "scaling-measured.svg", metadata={"Date": None})


def main() -> None:
    """Simulate, or measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--docs", type=Path, help="where to draw the plots")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.measure:
        print("\n".join(measured_rows(options.rounds, options.docs)))
        return
    print("\n".join([*localizing_rows(), "", *building_rows()]))
    if options.docs:
        plot(options.docs)


if __name__ == "__main__":
    main()
