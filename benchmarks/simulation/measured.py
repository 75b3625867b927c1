"""Localizing to 1, 2 and 3 nodes of the test cluster, whose networks are slowed down."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from distcache.corpus import idx_path
from simulation.localizing import Site
from tests.cluster.cluster import Cluster
from tests.cluster.jobs import Story, command, environment
from tests.cluster.node import BRIDGES, ETHERNET, STORAGE, slow_down
from tests.cluster.settings import LOCAL, Settings

MBIT = 1e6 / 8
# The filesystem's server, what a node gets of it, and the network between nodes; the disk is none.
SITE = Site(400 * MBIT, 240 * MBIT, 240 * MBIT, 1e9, 2e-4, 0.0)
STORE = LOCAL / "distcache-0"


def measure(base: Path, rounds: int) -> tuple[int, dict[tuple[str, int], list[float]]]:
    """Localize with every transport to every number of nodes, in turn.

    Returns
    -------
    size : int
        Bytes of the cache and the indices.
    seconds : dict
        By transport and nodes; that of ``("nothing", 1)`` is of a run that finds all there.
    """
    cluster = Cluster(Settings(base))
    try:
        cluster.up()
        story = Story.long(cluster.settings.shared, corpora=3)
        done = command(*story.words("--wait"))
        assert done.returncode == 0, done.stderr
        _slow_down(cluster)
        indices = [Path(idx_path(source["path"])) for source in story.fields["blend"]]
        size = sum(path.stat().st_size for path in [story.cache, *indices])
        found: dict[tuple[str, int], list[float]] = {}
        for _ in range(rounds):
            for nodes in (1, 2, 3):
                for transport in ("copy", "mpi"):
                    seconds = _localize(cluster, story, transport, nodes, empty=True)
                    found.setdefault((transport, nodes), []).append(seconds)
            again = _localize(cluster, story, "mpi", 1, empty=False)
            found.setdefault(("nothing", 1), []).append(again)
        return size, found
    finally:
        cluster.down()


def _slow_down(cluster: Cluster) -> None:
    """Limit the server of the filesystem, and both cards of every node."""
    slow_down(BRIDGES[1], f"{SITE.shared / MBIT:.0f}mbit")
    for node in cluster.nodes:
        node.slow_down(STORAGE, f"{SITE.shared_node / MBIT:.0f}mbit")
        node.slow_down(ETHERNET, f"{SITE.network / MBIT:.0f}mbit")


def _localize(cluster: Cluster, story: Story, transport: str, nodes: int, *, empty: bool) -> float:
    """Return the seconds that localizing takes, from nothing or when all is there."""
    if empty:
        clear = ["srun", "-N3", "sh", "-c", f"rm -rf {STORE}/* {STORE}/.??*"]
        subprocess.run(clear, check=True, capture_output=True)
        for node in cluster.nodes:
            cluster.shared.forget_on(node)
    words = ["srun", f"-N{nodes}", "--mpi=pmi2", "--ntasks-per-node=1", "distcache", "localize"]
    words += [str(story.cache), "--store", str(STORE), "--transport", transport]
    begin = time.perf_counter()
    subprocess.run(words, env=environment(), check=True, capture_output=True)
    return time.perf_counter() - begin
