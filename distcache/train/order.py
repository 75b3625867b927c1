"""Global orders: which sample every position of training takes, as functions of the position.

They are those of Megatron-LM's samplers. A step takes the next positions, as many as all ranks
need; which of them a rank gets is the sampler's affair.
"""

from __future__ import annotations

import functools
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["Cyclic", "Order", "Sequential", "Sharded"]


class Order(Protocol):
    """A global order.

    Attributes
    ----------
    epoch : int
        Positions after which an iteration ends.
    repeats : bool
        Whether there is another epoch then.
    interleaved : bool
        Whether ranks take the positions of a step in turn, and not a run each.
    """

    epoch: int
    repeats: bool
    interleaved: bool

    def ids(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return the samples of positions [begin, end)."""
        ...


class Sequential:
    """The samples as the cache has them, which has shuffled them already, and once."""

    repeats = False
    interleaved = False

    def __init__(self, total: int) -> None:
        self.epoch = total

    def ids(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return the positions themselves."""
        return np.arange(begin, end, dtype=np.int64)


class Cyclic:
    """Every epoch in an order of its own, drawn from the epoch's number.

    Parameters
    ----------
    epoch : int
        Positions of an epoch.
    shuffled : int
        Samples that are shuffled, at least as many.
    """

    repeats = True
    interleaved = True

    def __init__(self, epoch: int, shuffled: int) -> None:
        self.epoch = epoch
        self._shuffled = shuffled

    def ids(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return samples; a range may lie in several epochs."""
        pieces = []
        while begin < end:
            number, place = divmod(begin, self.epoch)
            count = min(end - begin, self.epoch - place)
            pieces.append(_permutation(self._shuffled, number)[place : place + count])
            begin += count
        return np.concatenate(pieces) if pieces else np.empty(0, np.int64)


class Sharded:
    """Cyclic, with a range of samples of its own for each rank, all shuffled alike.

    It depends on the number of ranks, and only there.

    Parameters
    ----------
    total : int
        Samples.
    micro_batch : int
        Samples that a rank takes per step.
    ranks : int
        Data-parallel ranks.
    """

    repeats = True
    interleaved = False

    def __init__(self, total: int, micro_batch: int, ranks: int) -> None:
        self._micro_batch = micro_batch
        self._ranks = ranks
        self._bucket = total // (micro_batch * ranks) * micro_batch
        self.epoch = self._bucket * ranks

    def ids(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return samples: of each step a run of each rank's."""
        positions = np.arange(begin, end, dtype=np.int64)
        numbers, places = np.divmod(positions, self.epoch)
        steps, within = np.divmod(places, self._micro_batch * self._ranks)
        ranks, members = np.divmod(within, self._micro_batch)
        drawn = steps * self._micro_batch + members
        out = np.empty(len(positions), np.int64)
        for number in np.unique(numbers).tolist():
            here = numbers == number
            out[here] = _permutation(self._bucket, number)[drawn[here]]
        out += ranks * self._bucket
        return out


@functools.lru_cache(maxsize=2)
def _permutation(size: int, seed: int) -> NDArray[np.int64]:
    """Return torch's permutation of a range for a seed, as Megatron draws it for an epoch."""
    generator = torch.Generator()
    generator.manual_seed(seed)
    drawn: NDArray[np.int64] = torch.randperm(size, generator=generator).numpy()
    return drawn
