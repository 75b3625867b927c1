"""Tiny pure functions that distribute work."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def balance(costs: Sequence[float], ranks: int) -> list[list[int]]:
    """Give each task to the least loaded rank, the longest task first.

    Parameters
    ----------
    costs : sequence of float
        Cost of each task.
    ranks : int
        Number of ranks.

    Returns
    -------
    list of list of int
        Task indices of each rank, the longest first.
    """
    heap = [(0.0, rank) for rank in range(ranks)]
    shares: list[list[int]] = [[] for _ in range(ranks)]
    for task in sorted(range(len(costs)), key=lambda task: (-costs[task], task)):
        load, rank = heapq.heappop(heap)
        shares[rank].append(task)
        heapq.heappush(heap, (load + costs[task], rank))
    return shares


def shares_of(
    items: int, ranks: int, costs: Sequence[float] | None = None
) -> Sequence[Sequence[int]]:
    """Return the numbers of each rank's items: every n-th, or by their costs as `balance`."""
    if costs is not None:
        return balance(costs, ranks)
    return [range(rank, items, ranks) for rank in range(ranks)]


def slice_bounds(size: int, slices: int, step: int) -> list[int]:
    """Cut [0, size) into contiguous slices of nearly equal size, at multiples of a step.

    Parameters
    ----------
    size, slices, step : int
        The last slice also takes what is left beyond the last multiple.

    Returns
    -------
    list of int
        slices + 1 bounds, from 0 to size.
    """
    steps = -(-size // step)
    return [min(steps * index // slices * step, size) for index in range(slices + 1)]
