"""A large blend, drawn by all ranks at once, each from a guess that is verified.

A step of a blend depends on all steps before it. But the state that it depends on, how often each
corpus has been taken, can be guessed so well that the blend does the same as the true one after
some hundred steps. So every rank draws a slice from a guess, and if each slice begins with the
state that the one before it has ended with, all of them are right. Those that do not are drawn
again from there. Corpora with weights of less than about a millionth need that: their turn comes so
seldom that a wrong guess at one of them lasts.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
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

RUN_UP: Final = 8192  # steps; 1,152 were needed for 5,000 log-normal weights of sigma 1.5
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
        # Each time the first of them becomes right, and in general all do.
        while wrong := self._wrong_ranks():
            self._bring_ends_before(wrong)
            action = self._draw_again if communicator.rank in wrong else _wait
            together(communicator, action, "drawing slices of a blend again")
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

    def _wrong_ranks(self) -> list[int]:
        """Return the ranks that did not begin as the one before them ended. Collective."""
        mine = tuple(
            xxhash.xxh3_128_hexdigest(state.tobytes()) for state in (self._begin, self._end)
        )
        shares = self._communicator.gather_all(mine, tuple[str, str], "states of a blend")
        pairs = itertools.pairwise(shares)
        return [rank for rank, (before, own) in enumerate(pairs, 1) if own[0] != before[1]]

    def _bring_ends_before(self, ranks: Sequence[int]) -> None:
        """Let ranks begin with the state that the one before them has ended with. Collective."""
        me = self._communicator.rank
        sends = [Message(me + 1, self._end)] if me + 1 in ranks else []
        if me in ranks:
            self._begin = np.empty_like(self._begin)
        receives = [Message(me - 1, self._begin)] if me in ranks else []
        self._communicator.exchange(sends, receives, "states of a blend")

    def _digests(self) -> dict[str, str]:
        """Put the digests of all slices together. Collective."""
        mine = {name: writer.leaves().tobytes() for name, writer in self._writers.items()}
        shares = self._communicator.gather_all(mine, dict[str, bytes], "digests of slices")
        return {name: joined_digest(share[name] for share in shares) for name in self._places}


def _wait() -> None:
    """Let another rank draw."""
