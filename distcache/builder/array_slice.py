"""A rank's slice of an array that all ranks write together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distcache.builder.arrays import ArrayWriter, PieceWriter
from distcache.builder.slices import edges
from distcache.plan.layout import ArrayPlace
from distcache.plan.model import STRIPE
from distcache.ranks.agreement import on_all_ranks
from distcache.ranks.communicator import Communicator, Message
from distcache.storage.unfinished_file import UnfinishedFile


class ArraySlice:
    """Writes a slice of an array from pieces of any size.

    Slices seldom end with a stripe: what is in a stripe that another rank begins is kept, and sent
    to it, so that no two ranks write into the same stripe.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks.
    place : ArrayPlace
        Place of the array in the file.
    file : UnfinishedFile
        The unfinished cache.
    bounds : sequence of int, length ranks + 1
        Rank r has the bytes [bounds[r], bounds[r + 1]) of the array.
    """

    def __init__(
        self,
        communicator: Communicator,
        place: ArrayPlace,
        file: UnfinishedFile,
        bounds: Sequence[int],
    ) -> None:
        self._communicator = communicator
        self._name = place.name.replace("_", " ")
        self._edges = edges(bounds, STRIPE)
        begin = bounds[communicator.rank]
        own = [edge.end for edge in self._edges if edge.sender == communicator.rank]
        head_end = max(own, default=begin)
        self._head = np.empty(head_end - begin, np.uint8)
        self._filled = 0
        self._writer = PieceWriter(ArrayWriter(file, place, head_end))

    def append(self, piece: NDArray[Any]) -> None:
        """Append the next piece of the slice, contiguous, which is not kept."""
        flat = piece.reshape(-1).view(np.uint8)
        count = min(len(self._head) - self._filled, flat.size)
        self._head[self._filled : self._filled + count] = flat[:count]
        self._filled += count
        self._writer.append(flat[count:])

    def finish(self) -> bytes:
        """Exchange what lies in the stripes of other ranks, and write the rest. Collective.

        Returns
        -------
        bytes
            The leaf digests of what this rank has written.
        """
        rank = self._communicator.rank
        sends = [Message(edge.owner, self._head) for edge in self._edges if edge.sender == rank]
        receives = [
            Message(edge.sender, np.empty(edge.end - edge.begin, np.uint8))
            for edge in self._edges
            if edge.owner == rank
        ]
        self._communicator.exchange(sends, receives, f"edges of a {self._name}")

        def write_rest() -> bytes:
            for message in receives:
                self._writer.append(message.data)
            return self._writer.leaves().tobytes()

        return on_all_ranks(self._communicator, write_rest, f"writing a {self._name}")
