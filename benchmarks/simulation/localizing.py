"""Localizing to N nodes, chunk by chunk, for each transport.

All nodes are alike, so one of them stands for all: what is simulated is the way of every chunk from
the shared filesystem over the network to the disk, with the windows and backlogs of the real ones.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from distcache.node.arriving import BACKLOG, FILES_AHEAD
from distcache.ranks.mpi import CHAIN_PIECE, LONGEST_CHAIN
from distcache.ranks.striped_broadcast import AHEAD, CHUNK, WINDOW

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


def stripes(site: Site, size: int, nodes: int) -> float:
    """Piece p is read by node p mod N, and broadcast to all; `localize`."""
    chunks = math.ceil(size / CHUNK)
    ahead = min(nodes * AHEAD, FILES_AHEAD, chunks)
    reading = min(site.shared / ahead, site.shared_node / math.ceil(ahead / nodes))
    delay = _broadcast_delay(site, nodes)
    # What comes over a node's own card, if files and messages share it.
    received = CHUNK / site.network * (1.0 if site.one_card else (nodes - 1) / nodes)
    started: deque[float] = deque([0.0] * ahead, ahead)
    arrived: deque[float] = deque([0.0] * WINDOW, WINDOW)
    written: deque[float] = deque([0.0] * BACKLOG, BACKLOG)
    last_read = last_arrived = last_written = 0.0
    for _ in range(chunks):
        # So many chunks are read at a time, and no further ahead of the broadcasts.
        last_read = max(last_read, started[0] + CHUNK / reading)
        begin = max(last_read, arrived[0], written[0])
        started.append(begin)
        last_arrived = max(begin + delay, last_arrived + received)
        arrived.append(last_arrived)
        last_written = max(last_arrived, last_written) + CHUNK / site.disk
        written.append(last_written)
    return last_written


def _broadcast_delay(site: Site, nodes: int) -> float:
    """A chain of pieces, or scatter and ring allgather, as MPI libraries broadcast."""
    if nodes == 1:
        return 0.0
    if nodes <= LONGEST_CHAIN:
        piece = CHAIN_PIECE / site.network + site.latency
        return (CHUNK / CHAIN_PIECE + nodes - 2) * piece
    steps = math.ceil(math.log2(nodes)) + nodes - 1
    return 2 * CHUNK / site.network * (nodes - 1) / nodes + steps * site.latency


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


TRANSPORTS = {"copy": copy, "mpi": stripes, "ring": ring, "sbcast": sbcast}


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
