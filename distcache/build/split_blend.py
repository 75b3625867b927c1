"""A large blend, drawn by all ranks at once, each from a guess that is verified.

A step of a blend depends on all steps before it. But the state that it depends on, how often each
corpus has been taken, can be guessed so well that the blend does the same as the true one after
some hundred steps. So every rank draws a slice from a guess, and if each slice begins with the
state that the one before it has ended with, all of them are right. One that does not is drawn
again.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import xxhash

from distcache.build.blends import BlendWriters, new_blender, write_steps
from distcache.build.data_file import DataFile
from distcache.cache.digests import joined_digest
from distcache.kernels import Blender
from distcache.plan.blend_state import likely_taken
from distcache.plan.costs import BLEND_SLICE
from distcache.plan.layout import ArrayPlace
from distcache.plan.model import BlendPlan
from distcache.ranks.agreement import together
from distcache.ranks.balance import slice_bounds
from distcache.ranks.communicator import Communicator, Message

__all__ = ["SplitBlend"]

RUN_UP: Final = 8192  # steps in which a guess becomes true; 1,152 were the most that was seen
ENDLESS: Final = 2**62


class SplitBlend:
    """One blend, built by `build`.

    Parameters
    ----------
    communicator : Communicator
        Of all ranks.
    blend : BlendPlan
        What to build.
    places : dict of str to ArrayPlace
        Where to write each array.
    file : DataFile
        The unfinished cache.
    """

    def __init__(
        self,
        communicator: Communicator,
        blend: BlendPlan,
        places: dict[str, ArrayPlace],
        file: DataFile,
    ) -> None:
        self._communicator = communicator
        self._blend = blend
        self._places = places
        self._file = file
        bounds = slice_bounds(blend.size, communicator.size, BLEND_SLICE)
        self._steps = range(bounds[communicator.rank], bounds[communicator.rank + 1])
        self._begin = self._end = np.empty(0, np.int64)
        self._writers: BlendWriters = {}

    def build(self) -> dict[str, str]:
        """Draw and write the blend. Collective.

        Returns
        -------
        dict of str to str
            The digest of each array, on all ranks.
        """
        communicator = self._communicator
        together(communicator, lambda: self._draw(self._guess()), "drawing a blend")
        while (wrong := self._first_wrong()) is not None:
            self._bring_end_before(wrong)
            mine = communicator.rank == wrong
            action = self._draw_again if mine else _wait
            together(communicator, action, "drawing a slice of a blend again")
        return self._digests()

    def _guess(self) -> Blender:
        """Return a blender that is probably as the true one at the first step of the slice."""
        blend, blender = self._blend, new_blender(self._blend)
        sizes = np.array(blend.sizes or [ENDLESS] * len(blend.weights), np.int64)
        weights = np.array(blend.weights or sizes / sizes.sum(), np.float64)
        before = max(self._steps.start - RUN_UP, 0)
        blender.resume(likely_taken(weights, sizes, before))
        blender.skip(self._steps.start - before)
        return blender

    def _draw_again(self) -> None:
        """Draw the slice from the state that the one before has ended with."""
        blender = new_blender(self._blend)
        blender.resume(self._begin)
        self._draw(blender)

    def _draw(self, blender: Blender) -> None:
        self._begin = np.array(blender.taken, np.int64)
        self._writers = write_steps(blender, self._steps, self._places, self._file)
        self._end = np.array(blender.taken, np.int64)

    def _first_wrong(self) -> int | None:
        """Return the first rank that did not begin as the one before it ended. Collective."""
        mine = tuple(
            xxhash.xxh3_128_hexdigest(state.tobytes()) for state in (self._begin, self._end)
        )
        shares = self._communicator.gather_all(mine, tuple[str, str], "states of a blend")
        for rank in range(1, len(shares)):
            if shares[rank][0] != shares[rank - 1][1]:
                return rank
        return None

    def _bring_end_before(self, rank: int) -> None:
        """Let a rank begin with the state that the one before it has ended with. Collective."""
        sends: list[Message] = []
        receives: list[Message] = []
        if self._communicator.rank == rank - 1:
            sends.append(Message(rank, self._end))
        elif self._communicator.rank == rank:
            self._begin = np.empty_like(self._begin)
            receives.append(Message(rank - 1, self._begin))
        self._communicator.exchange(sends, receives, "the state of a blend")

    def _digests(self) -> dict[str, str]:
        """Put the digests of all slices together. Collective."""
        mine = {name: writer.leaves().tobytes() for name, writer in self._writers.items()}
        shares = self._communicator.gather_all(mine, dict[str, bytes], "digests of slices")
        return {name: joined_digest(share[name] for share in shares) for name in self._places}


def _wait() -> None:
    """Let another rank draw."""
