"""Global orders: the sample of every position of training, as a function of the position.

They are those of Megatron-LM's samplers. A step takes the next positions of all ranks; the sampler
decides which of them a rank gets.
"""

from __future__ import annotations

import functools
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from distcache.kernels import Permutation


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
    """

    repeats = True
    interleaved = True

    def __init__(self, epoch: int, shuffled: int) -> None:
        self.epoch = epoch
        self._drawn = _Epochs(shuffled)

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
    """

    repeats = True
    interleaved = False

    def __init__(self, total: int, micro_batch: int, ranks: int) -> None:
        self._micro_batch = micro_batch
        self._ranks = ranks
        self._bucket = total // (micro_batch * ranks) * micro_batch
        self.epoch = self._bucket * ranks
        self._drawn = _Epochs(self._bucket)

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


class _Epochs:
    """Torch's permutations of a range, one for each epoch's number, as Megatron draws them.

    Up to 2**32 // 20 samples the values are drawn lazily, so that an epoch begins at once. Memory
    holds one permutation, four bytes for each sample (eight from 2**31 on). Going back draws from
    the start again.

    Parameters
    ----------
    size : int
        Samples of the range.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._number = -1
        self._drawn: Permutation | _Whole | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _Epochs, (self._size,)

    def values(self, number: int, begin: int, end: int) -> NDArray[np.int64]:
        """Return values [begin, end) of an epoch's permutation."""
        if self._drawn is None or number != self._number or begin < self._drawn.position:
            self._drawn = None  # release its memory before the next one allocates
            self._number = number
            self._drawn = (Permutation if _is_torchs_own() else _Whole)(number, self._size)
        self._drawn.skip(begin - self._drawn.position)
        out = np.empty(end - begin, np.int64)
        self._drawn.next(out)
        return out


class _Whole:
    """The same as `Permutation`, drawn by torch, with memory for all of it."""

    def __init__(self, seed: int, size: int) -> None:
        self._values: NDArray[np.int64] = _draw(seed, size)
        self.position = 0

    def next(self, out: NDArray[np.int64]) -> None:
        out[:] = self._values[self.position : self.position + len(out)]
        self.position += len(out)

    def skip(self, count: int) -> None:
        self.position += count


def _draw(seed: int, size: int) -> NDArray[np.int64]:
    drawn: NDArray[np.int64] = torch.randperm(
        size, generator=torch.Generator().manual_seed(seed)
    ).numpy()
    return drawn


@functools.cache
def _is_torchs_own() -> bool:
    """Return whether this version of torch draws as `Permutation` does."""
    out = np.empty(1000, np.int64)
    Permutation(77, len(out)).next(out)
    return bool(np.array_equal(out, _draw(77, len(out))))
