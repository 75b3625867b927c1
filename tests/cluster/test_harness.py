"""The cluster itself is what the other tests take it for."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.cluster import Cluster
from tests.cluster.daemons import run


def test_nodes_have_private_disks(cluster: Cluster) -> None:
    """What one writes to its own disk, no other sees, and the head neither."""
    names = cluster.settings.names
    assert sorted(run("srun", "-N3", "hostname").split()) == names
    run("srun", "-N3", "sh", "-c", "hostname > /local/who")
    assert sorted(run("srun", "-N3", "cat", "/local/who").split()) == names
    assert not Path("/local/who").exists()


def test_the_network_filesystem_is_shared(cluster: Cluster, shared: Path) -> None:
    """And what a node reads of it comes through its own network card."""
    (shared / "bytes").write_bytes(bytes(8 << 20))
    before = [node.received() for node in cluster.nodes]
    run("srun", "-N3", "md5sum", shared / "bytes")
    after = [node.received() for node in cluster.nodes]
    assert all(b - a > 8 << 20 for a, b in zip(before, after, strict=True))
