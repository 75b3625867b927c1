"""Localizing to 1 to 32 nodes of the test cluster, whose networks are slowed down.

Beside it what sites do without distcache: `cp` on every node, and Slurm's `sbcast`. They bring the
indices alone, a fifth of the bytes, and their seconds are multiplied: they would take an hour.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.simulation.localizing import Site
from distcache.corpus import idx_path
from tests.cluster.cluster import Cluster
from tests.cluster.jobs import Story, command, environment
from tests.cluster.node import BRIDGES, ETHERNET, STORAGE, slow_down
from tests.cluster.settings import LOCAL, Settings

NODES: Final = (1, 2, 4, 8, 16, 32)
METHODS: Final = ("localize", "cp", "sbcast")
# The filesystem's server, and each node's card, over which files and messages come; the disk is
# none. With twice the bandwidth, two cores are too few for 32 nodes.
SITE: Final = Site(20e6, 10e6, 10e6, 1e9, 2e-4, 0.0, one_card=True)
STORE: Final = LOCAL / "distcache-0"
NODE_MEMORY: Final = 3000  # MiB


class Taken(NamedTuple):
    """What one run took."""

    seconds: float
    start: float  # seconds of a run that finds everything there, or has nothing to bring
    read: int  # bytes that the filesystem's server sent


class Lab:
    """The test cluster with slow networks, and a cache on its shared filesystem.

    Parameters
    ----------
    base : Path
        A directory of its own.
    """

    def __init__(self, base: Path) -> None:
        self._cluster = Cluster(Settings(base, nodes=max(NODES), memory=NODE_MEMORY))
        self._files: list[Path] = []

    def __enter__(self) -> Lab:
        try:
            self._cluster.up()
            story = Story.long(self._cluster.settings.shared, corpora=3)
            done = command(*story.words("--wait"))
            assert done.returncode == 0, done.stderr
            indices = [Path(idx_path(source["path"])) for source in story.fields["blend"]]
            self._files = [story.cache, *indices]
            self._slow_down()
        except BaseException:
            self._cluster.down()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.down()

    @property
    def size(self) -> int:
        """Bytes of the cache and the indices."""
        return sum(path.stat().st_size for path in self._files)

    def take(self, method: str, nodes: int) -> Taken:
        """Bring the files, or a part of them, to the first nodes, which have nothing of them."""
        files = self._files if method == "localize" else self._files[1:]
        start = 0.0 if method == "localize" else self._time(method, nodes, [])
        self._clear(nodes)
        before = self._sent()
        seconds = self._time(method, nodes, files)
        read = self._sent() - before
        if method == "localize":
            return Taken(seconds, self._time(method, nodes, files), read)
        whole = self.size / sum(path.stat().st_size for path in files)
        return Taken(start + (seconds - start) * whole, start, round(read * whole))

    def _slow_down(self) -> None:
        """Limit the filesystem's server, and both cards of every node in both directions."""
        slow_down(BRIDGES[1], _rate(SITE.shared))
        for node in self._cluster.nodes:
            for card, rate in ((STORAGE, SITE.shared_node), (ETHERNET, SITE.network)):
                node.slow_down(card, _rate(rate), both=True)

    def _clear(self, nodes: int) -> None:
        """Remove copies, and what the nodes' memory has of the shared filesystem."""
        for node in self._cluster.nodes[:nodes]:
            node.run("sh", "-c", f"rm -rf {STORE}; mkdir {STORE}; sync {STORE}")
            self._cluster.shared.forget_on(node)

    def _sent(self) -> int:
        """Return the bytes that the filesystem's server has sent; what nodes send is not in it."""
        return int(Path(f"/sys/class/net/{BRIDGES[1]}/statistics/tx_bytes").read_text())

    def _time(self, method: str, nodes: int, files: list[Path]) -> float:
        """Return the seconds of a method on the first nodes, or of its start without files."""
        job = ["srun", f"-N{nodes}", f"-wnode[1-{nodes}]", "--ntasks-per-node=1"]
        match method:
            case "localize":
                words = [*job, "--mpi=pmi2", "distcache", "localize", str(files[0])]
                words += ["--store", str(STORE)]
            case "cp":
                copy = ["cp", *map(str, files), str(STORE)] if files else ["true"]
                words = [*job, "--mpi=none", *copy]
            case _:  # larger blocks than 1 MiB last longer than Slurm waits for a message
                each = [f"sbcast -f -s 1m {path} {STORE}/{path.name}" for path in files]
                words = ["salloc", *job[1:], "srun", "-N1", "-n1", "--mpi=none"]
                words += ["sh", "-c", " && ".join(each) or "true"]
        begin = time.perf_counter()
        one_card = environment(FI_TCP_IFACE=STORAGE)
        done = subprocess.run(words, env=one_card, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - begin
        assert done.returncode == 0, done.stderr
        return seconds


def _rate(speed: float) -> str:
    """Return bytes per second in the words of tc."""
    return f"{8 * speed:.0f}bit"


def measure(base: Path, rounds: int) -> tuple[int, dict[tuple[str, int], list[Taken]]]:
    """Measure every method on every number of nodes: `localize` in rounds, what only copies once.

    Returns
    -------
    size : int
        Bytes of the cache and the indices.
    found : dict
        Values of each round, by method and nodes.
    """
    with Lab(base) as lab:
        found: dict[tuple[str, int], list[Taken]] = {}
        for method in [*(["localize"] * rounds), "cp", "sbcast"]:
            for nodes in NODES:
                found.setdefault((method, nodes), []).append(lab.take(method, nodes))
                print(method, nodes, found[method, nodes][-1], file=sys.stderr)
        return lab.size, found
