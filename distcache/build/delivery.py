"""Values on their way to the ranks that own what they are for, and answers on their way back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distcache.kernels import group_by_range
from distcache.ranks.agreement import together
from distcache.ranks.communicator import Communicator, Message

__all__ = ["Delivery"]


class Delivery:
    """Connects keys of this rank with their owners. Collective, as are its methods.

    Parameters
    ----------
    communicator : Communicator
        Of all ranks.
    bounds : sequence of int, length ranks + 1
        Rank r owns keys [bounds[r], bounds[r + 1]).
    keys : ndarray of uint32, shape (keys,)
        Any that are owned.
    what : str
        What is delivered, for errors.
    """

    def __init__(
        self,
        communicator: Communicator,
        bounds: Sequence[int],
        keys: NDArray[np.uint32],
        what: str,
    ) -> None:
        self._communicator = communicator
        self._what = what
        self._order, self._sent = together(
            communicator, lambda: group_by_range(keys, np.array(bounds, np.int64)), what
        )
        received = [np.empty(1, np.int64) for _ in range(communicator.size)]
        received[communicator.rank][0] = self._sent[communicator.rank]
        self._exchange([self._sent[r : r + 1].copy() for r in self._ranks()], received)
        self._received = np.concatenate(received)

    def forward(self, values: NDArray[Any]) -> NDArray[Any]:
        """Bring a value for each key to the key's owner.

        Parameters
        ----------
        values : ndarray, shape (keys,)
            The same dtype on all ranks.

        Returns
        -------
        ndarray, shape (keys of all ranks that this one owns,)
            By rank, and in the order of the keys there.
        """
        arrived = np.empty(int(self._received.sum()), values.dtype)
        parts = _split(arrived, self._received)
        self._exchange(_split(values[self._order], self._sent), parts)
        return arrived

    def back(self, answers: NDArray[Any]) -> NDArray[Any]:
        """Bring an answer to each value that has arrived to where it came from.

        Parameters
        ----------
        answers : ndarray, shape (as `forward` returns,)
            The same dtype on all ranks.

        Returns
        -------
        ndarray, shape (keys,)
            The answer for each key.
        """
        arrived = np.empty(len(self._order), answers.dtype)
        self._exchange(_split(answers, self._received), _split(arrived, self._sent))
        found = np.empty_like(arrived)
        found[self._order] = arrived
        return found

    def _ranks(self) -> range:
        return range(self._communicator.size)

    def _exchange(self, sends: list[NDArray[Any]], receives: list[NDArray[Any]]) -> None:
        """Send a part to every rank, and receive one from each. Collective."""
        me = self._communicator.rank
        receives[me][:] = sends[me]
        others = [rank for rank in self._ranks() if rank != me]
        self._communicator.exchange(
            [Message(rank, sends[rank]) for rank in others if sends[rank].size],
            [Message(rank, receives[rank]) for rank in others if receives[rank].size],
            self._what,
        )


def _split(values: NDArray[Any], counts: NDArray[np.int64]) -> list[NDArray[Any]]:
    """Return consecutive parts of an array, views of it."""
    ends = np.cumsum(counts)
    return [values[end - count : end] for end, count in zip(ends, counts, strict=True)]
