"""Who was slow: what a build record says about phases and ranks."""

from __future__ import annotations

import statistics
from typing import Final

import msgspec

from distcache.build.record import BuildRecord, RankRecord

__all__ = ["PhaseTiming", "Timings", "make_timings", "total_own_seconds"]

SHOWN: Final = 8  # of the slowest ranks


class PhaseTiming(msgspec.Struct, frozen=True):
    """One phase: seconds of own work, without waiting for other ranks.

    Attributes
    ----------
    phase : str
        Its name.
    seconds : float
        That the build was in it.
    least, median, most : float
        Of the own work of all ranks.
    slowest_rank, slowest_host : int, str
        The rank that worked longest, and where it ran.
    """

    phase: str
    seconds: float
    least: float
    median: float
    most: float
    slowest_rank: int
    slowest_host: str


class Timings(msgspec.Struct, frozen=True):
    """What a build took.

    Attributes
    ----------
    phases : tuple of PhaseTiming
        In their order.
    ranks : tuple of RankRecord
        Those that worked longest, the slowest first.
    """

    phases: tuple[PhaseTiming, ...]
    ranks: tuple[RankRecord, ...]


def own_seconds(rank: RankRecord, phase: str) -> float:
    """Return how long a rank worked in a phase, without waiting for others."""
    return max(rank.seconds.get(phase, 0.0) - rank.waited.get(phase, 0.0), 0.0)


def make_timings(record: BuildRecord, shown: int = SHOWN) -> Timings:
    """Sum up a build record.

    Parameters
    ----------
    record : BuildRecord
        Of at least one rank.
    shown : int
        How many of the slowest ranks to name.
    """
    phases = tuple(_timing(record, phase) for phase in record.ranks[0].seconds)
    slowest = sorted(record.ranks, key=lambda rank: (-total_own_seconds(rank), rank.rank))
    return Timings(phases, tuple(slowest[:shown]))


def total_own_seconds(rank: RankRecord) -> float:
    """Return how long a rank worked in all, without waiting for others."""
    return sum(own_seconds(rank, phase) for phase in rank.seconds)


def _timing(record: BuildRecord, phase: str) -> PhaseTiming:
    own = [own_seconds(rank, phase) for rank in record.ranks]
    most = max(own)
    slowest = record.ranks[own.index(most)]
    return PhaseTiming(
        phase=phase,
        seconds=max(rank.seconds.get(phase, 0.0) for rank in record.ranks),
        least=min(own),
        median=statistics.median(own),
        most=most,
        slowest_rank=slowest.rank,
        slowest_host=slowest.host,
    )
