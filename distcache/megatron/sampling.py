"""Global orders: the sample of every place of training, as a function of the place.

They are those of Megatron-LM's samplers (``megatron/training/datasets/data_samplers.py``). A step
takes the next places of all ranks; the sampler decides which of them a rank gets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from distcache.kernels import Permutation


class Drawn(Protocol):
    """A permutation that is drawn from its start on."""

    @property
    def position(self) -> int:
        """Values that have been drawn."""
        ...

    def next(self, out: NDArray[np.int64]) -> None:
        """Write the next values."""
        ...

    def skip(self, count: int) -> None:
        """Move past the next values."""
        ...


Draw = Callable[[int, int], Drawn]
"""Draws torch's permutation with a seed, of so many values."""


class Order(Protocol):
    """A global order."""

    epoch: int  # positions after which an iteration ends
    repeats: bool  # whether another epoch follows
    interleaved: bool  # whether ranks take the positions of a step in turn, instead of a run each

    def ids(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return the samples of positions [begin, end)."""
        ...


class Sequential:
    """The samples in the order of the cache, which is shuffled already; one epoch."""

    repeats = False
    interleaved = False

    def __init__(self, total: int) -> None:
        self.epoch = total

    def ids(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return the positions themselves."""
        return np.arange(begin, end, dtype=np.int64)


class Cyclic:
    """Every epoch is shuffled, with its number as the seed.

    Parameters
    ----------
    epoch : int
        Positions of an epoch.
    shuffled : int
        Samples that are shuffled, at least as many.
    draw : callable
        Function that draws a permutation.
    """

    repeats = True
    interleaved = True

    def __init__(self, epoch: int, shuffled: int, draw: Draw = Permutation) -> None:
        self.epoch = epoch
        self._drawn = _Epochs(shuffled, draw)

    def ids(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return samples; a range may span several epochs."""
        pieces = []
        while begin < end:
            number, place = divmod(begin, self.epoch)
            count = min(end - begin, self.epoch - place)
            pieces.append(self._drawn.values(number, place, place + count))
            begin += count
        return np.concatenate(pieces) if pieces else np.empty(0, np.int64)


class Sharded:
    """Cyclic, with a separate range of samples for each rank; all are shuffled alike.

    Only this order depends on the number of ranks.

    Parameters
    ----------
    total : int
        Samples.
    micro_batch : int
        Samples that a rank takes per step.
    ranks : int
        Data-parallel ranks.
    draw : callable
        Function that draws a permutation.
    """

    repeats = True
    interleaved = False

    def __init__(self, total: int, micro_batch: int, ranks: int, draw: Draw = Permutation) -> None:
        self._micro_batch = micro_batch
        self._ranks = ranks
        self._bucket = total // (micro_batch * ranks) * micro_batch
        self.epoch = self._bucket * ranks
        self._drawn = _Epochs(self._bucket, draw)

    def ids(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return samples: in each step a run of each rank."""
        positions = np.arange(begin, end, dtype=np.int64)
        numbers, places = np.divmod(positions, self.epoch)
        steps, within = np.divmod(places, self._micro_batch * self._ranks)
        ranks, members = np.divmod(within, self._micro_batch)
        drawn = steps * self._micro_batch + members
        out = np.empty(len(positions), np.int64)
        for number in np.unique(numbers).tolist():
            here = numbers == number
            first, last = int(drawn[here].min()), int(drawn[here].max()) + 1
            out[here] = self._drawn.values(number, first, last)[drawn[here] - first]
        out += ranks * self._bucket
        return out


class FullValidation:
    """The samples of ``--full-validation``: each evaluation goes through all of them.

    Rank r takes samples r, r + ranks, ..., one at a time, as often as the rank that has most of
    them; a rank that has fewer begins again, and continues there in the next evaluation.

    Parameters
    ----------
    total : int
        Samples, at least one for each rank.
    ranks : int
        Data-parallel ranks.
    """

    repeats = True
    interleaved = True

    def __init__(self, total: int, ranks: int) -> None:
        self._total = total
        self._ranks = ranks
        self.epoch = -(-total // ranks) * ranks

    def ids(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return samples; a range may span several evaluations."""
        taken, ranks = np.divmod(np.arange(begin, end, dtype=np.int64), self._ranks)
        own = (self._total - ranks + self._ranks - 1) // self._ranks
        found: NDArray[np.int64] = ranks + taken % own * self._ranks
        return found


class _Epochs:
    """Torch's permutations of a range, one for each epoch's number, as Megatron draws them.

    Up to 2**32 // 20 samples the values are drawn lazily, so that an epoch begins at once. Memory
    holds one permutation, four bytes for each sample (eight from 2**31 on). Going back draws from
    the start again.

    Parameters
    ----------
    size : int
        Samples of the range.
    draw : callable
        Function that draws a permutation.
    """

    def __init__(self, size: int, draw: Draw) -> None:
        self._size = size
        self._draw = draw
        self._number = -1
        self._drawn: Drawn | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _Epochs, (self._size, self._draw)

    def values(self, number: int, begin: int, end: int) -> NDArray[np.int64]:
        """Return values [begin, end) of an epoch's permutation."""
        if self._drawn is None or number != self._number or begin < self._drawn.position:
            self._drawn = None  # release its memory before the next one allocates
            self._number = number
            self._drawn = self._draw(number, self._size)
        self._drawn.skip(begin - self._drawn.position)
        out = np.empty(end - begin, np.int64)
        self._drawn.next(out)
        return out
