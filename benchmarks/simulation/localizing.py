"""Localizing to N nodes, round by round, for each transport.

All nodes are alike, so one of them stands for all: what is simulated is the way of every round from
the shared filesystem over the network to the disk, three of which are under way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from distcache.ranks.gather_rounds import ROUND_BYTES

RING_CHUNK = 1 << 20
AT_ONCE = 64  # nodes that copy at a time
TREE_WIDTH = 16  # as it was measured; larger in some releases


@dataclass(frozen=True)
class Site:
    """A cluster: bytes per second, and seconds.

    Attributes
    ----------
    shared, shared_node : float
        What the filesystem gives to all nodes together, and to one.
    network : float
        Of each node, in either direction.
    disk : float
        Of each node, for writing.
    latency : float
        Of a message.
    start : float
        What any transport takes beside moving bytes: starting, comparing, syncing.
    one_card : bool
        Whether files and messages come over the same network card.
    """

    shared: float
    shared_node: float
    network: float
    disk: float
    latency: float
    start: float
    one_card: bool = False


def copy(site: Site, size: int, nodes: int) -> float:
    """Every node reads all, at most so many at a time."""
    seconds = 0.0
    for begin in range(0, nodes, AT_ONCE):
        at_once = min(AT_ONCE, nodes - begin)
        seconds += size / min(site.shared / at_once, site.shared_node, site.disk)
    return seconds


def rounds(site: Site, size: int, nodes: int) -> float:
    """All read a share of each round, which an allgather gives to all; `localize`."""
    if nodes == 1:
        return copy(site, size, nodes)
    reading = min(site.shared, nodes * site.shared_node)
    read = arrived = written = written_before = 0.0
    for begin in range(0, size, ROUND_BYTES):
        nbytes = min(ROUND_BYTES, size - begin)
        if not begin:
            read = nbytes / reading
        started = max(read, arrived, written_before)
        read = started + nbytes / reading  # the next round
        # What comes over a node's own card, if files and messages share it.
        received = nbytes / site.network * (1.0 if site.one_card else (nodes - 1) / nodes)
        arrived = started + received + (nodes - 1) * site.latency
        written_before, written = written, max(arrived, written) + nbytes / site.disk
    return written


def ring(site: Site, size: int, nodes: int) -> float:
    """Each byte is read once, and handed on from node to node in small chunks; not built."""
    reading = min(site.shared, nodes * site.shared_node)
    moving = min(reading, site.network if nodes > 1 else reading, site.disk)
    return size / moving + (nodes - 1) * (RING_CHUNK / site.network + site.latency)


def sbcast(site: Site, size: int, nodes: int) -> float:
    """One node reads a block, and sends it to all; the next block follows when all have it.

    Slurm's: up to `TREE_WIDTH` nodes get it from the sender, and those below from each of these.
    """
    left, copies = nodes - 1, 0
    width = TREE_WIDTH
    while left > 0:
        copies += min(width, left)
        left = math.ceil((left - width) / width)
    return size * (1 / min(site.shared, site.shared_node) + copies / site.network + 1 / site.disk)


TRANSPORTS = {"copy": copy, "mpi": rounds, "ring": ring, "sbcast": sbcast}


def simulate(transport: str, site: Site, size: int, nodes: int) -> float:
    """Return the seconds that localizing takes.

    Parameters
    ----------
    transport : str
        One of `TRANSPORTS`.
    site : Site
        Where.
    size : int
        Bytes of the cache and the indices.
    nodes : int
        How many.
    """
    return site.start + TRANSPORTS[transport](site, size, nodes)
