"""The two arrays of a blend: by one rank, or a large one by all ranks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import numpy as np
import xxhash

from distcache.builder.arrays import ArrayWriter
from distcache.builder.job import Job
from distcache.builder.section_slice import joined_digests
from distcache.kernels import Blender
from distcache.plan.blend_counts import estimate_counts
from distcache.plan.layout import BLEND_SLICE, ArrayPlace
from distcache.plan.memory import CHUNK_BYTES
from distcache.plan.model import BlendPlan
from distcache.ranks.agreement import on_all_ranks
from distcache.ranks.communicator import Message
from distcache.ranks.partition import slice_bounds
from distcache.storage.unfinished_file import UnfinishedFile

BlendWriters = dict[str, ArrayWriter]
"""Of the dataset index and the dataset sample index, by name."""
# A multiple of a leaf for the narrower of the two arrays.
STEPS = CHUNK_BYTES // 8
RUN_UP: Final = 8192  # steps; 1,152 were needed for 5,000 log-normal weights of sigma 1.5
ENDLESS: Final = 2**62


def new_blender(blend: BlendPlan) -> Blender:
    """Return a blender before the first step of a blend."""
    if blend.exhaustive:
        return Blender.exhaustive(np.array(blend.sizes, np.int64), blend.fused)
    return Blender.by_weight(np.array(blend.weights, np.float64), blend.fused)


def build_blend(
    blend: BlendPlan, places: dict[str, ArrayPlace], file: UnfinishedFile
) -> dict[str, str]:
    """Build and write a blend.

    Parameters
    ----------
    blend : BlendPlan
        Blend to build.
    places : dict of str to ArrayPlace
        Place of each array in the file.
    file : UnfinishedFile
        The unfinished cache.

    Returns
    -------
    dict of str to str
        The digest of each array.
    """
    writers = write_steps(new_blender(blend), range(blend.size), places, file)
    return {name: writer.finish() for name, writer in writers.items()}


def write_steps(
    blender: Blender, steps: range, places: dict[str, ArrayPlace], file: UnfinishedFile
) -> BlendWriters:
    """Take steps of a blend and write them.

    Parameters
    ----------
    blender : Blender
        Blender before the first of the steps; left after the last.
    steps : range
        Steps to write; the first one is at the start of a leaf in both arrays.
    places : dict of str to ArrayPlace
        Place of each array in the file.
    file : UnfinishedFile
        The unfinished cache.

    Returns
    -------
    BlendWriters
        Writers with the leaf digests of what was written.
    """
    writers = {
        name: ArrayWriter(file, place, steps.start * np.dtype(place.dtype).itemsize)
        for name, place in places.items()
    }
    room = min(STEPS, len(steps))
    corpora, samples = np.empty(room, np.int16), np.empty(room, np.int64)
    for begin in range(0, len(steps), STEPS):
        count = min(STEPS, len(steps) - begin)
        blender.next(corpora[:count], samples[:count])
        writers["dataset_index"].append(corpora[:count])
        writers["dataset_sample_index"].append(samples[:count])
    return writers


class SplitBlend:
    """One blend, built by `build`.

    Parameters
    ----------
    job : Job
        The build.
    item : int
        Index of the blend into `Plan.items`.
    file : UnfinishedFile
        The unfinished cache.
    """

    def __init__(self, job: Job, item: int, file: UnfinishedFile) -> None:
        self._communicator = job.communicator
        self._blend = job.plan.blends[item - len(job.plan.sections)]
        self._places = job.places(item)
        self._file = file
        bounds = slice_bounds(self._blend.size, job.communicator.size, BLEND_SLICE)
        self._steps = range(bounds[job.communicator.rank], bounds[job.communicator.rank + 1])
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
        on_all_ranks(communicator, lambda: self._draw(self._guess()), "drawing a blend")
        # Each round at least the first wrong slice becomes valid; in general all do.
        while wrong := self._wrong_ranks():
            self._send_end_states(wrong)
            action = self._draw_again if communicator.rank in wrong else _wait
            on_all_ranks(communicator, action, "drawing slices of a blend again")
        mine = {name: writer.leaves().tobytes() for name, writer in self._writers.items()}
        return joined_digests(self._communicator, mine)

    def _guess(self) -> Blender:
        """Return a blender in the estimated state at the first step of the slice."""
        blend, blender = self._blend, new_blender(self._blend)
        sizes = np.array(blend.sizes or [ENDLESS] * len(blend.weights), np.int64)
        weights = np.array(blend.weights or sizes / sizes.sum(), np.float64)
        before = max(self._steps.start - RUN_UP, 0)
        blender.resume(estimate_counts(weights, sizes, before))
        blender.skip(self._steps.start - before)
        return blender

    def _draw_again(self) -> None:
        """Draw the slice from the end state of the slice before it."""
        blender = new_blender(self._blend)
        blender.resume(self._begin)
        self._draw(blender)

    def _draw(self, blender: Blender) -> None:
        self._begin = np.array(blender.taken, np.int64)
        self._writers = write_steps(blender, self._steps, self._places, self._file)
        self._end = np.array(blender.taken, np.int64)

    def _wrong_ranks(self) -> list[int]:
        """Return the ranks whose begin differs from the end of the slice before. Collective."""
        mine = tuple(
            xxhash.xxh3_128_hexdigest(state.tobytes()) for state in (self._begin, self._end)
        )
        shares = self._communicator.allgather(mine, tuple[str, str], "states of a blend")
        pairs = itertools.pairwise(shares)
        return [rank for rank, (before, own) in enumerate(pairs, 1) if own[0] != before[1]]

    def _send_end_states(self, ranks: Sequence[int]) -> None:
        """Send each rank the end state of the rank before it. Collective."""
        me = self._communicator.rank
        sends = [Message(me + 1, self._end)] if me + 1 in ranks else []
        if me in ranks:
            self._begin = np.empty_like(self._begin)
        receives = [Message(me - 1, self._begin)] if me in ranks else []
        self._communicator.exchange(sends, receives, "states of a blend")


def _wait() -> None:
    """Do nothing, while other ranks draw again."""
