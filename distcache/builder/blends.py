"""The two arrays of a blend: by one rank, or a large one by all ranks; each with its threads."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from distcache.builder.arrays import ArrayWriter
from distcache.builder.job import Job
from distcache.builder.section_slice import joined_digests
from distcache.cache.digests import joined_digest
from distcache.kernels import Blender
from distcache.plan.blend_counts import estimate_counts
from distcache.plan.costs import blend_workers
from distcache.plan.layout import BLEND_SLICE, ArrayPlace
from distcache.plan.memory import CHUNK_BYTES
from distcache.plan.model import BlendPlan
from distcache.plan.sizes import normalize
from distcache.ranks.agreement import on_all_ranks
from distcache.ranks.communicator import Message
from distcache.ranks.partition import slice_bounds
from distcache.storage.threads import map_in_threads
from distcache.storage.unfinished_file import UnfinishedFile

BlendWriters = dict[str, ArrayWriter]
"""Of the dataset index and the dataset sample index, by name."""
# A multiple of a leaf for the narrower of the two arrays.
STEPS = CHUNK_BYTES // 8
RUN_UP: Final = 8192  # steps; 1,152 were needed for 5,000 log-normal weights of sigma 1.5
ENDLESS: Final = 2**62


class PhasedBlender:
    """A blend whose weights change: like a `Blender`, and Megatron's own within each phase.

    Parameters
    ----------
    blend : BlendPlan
        A blend with phases.
    """

    def __init__(self, blend: BlendPlan) -> None:
        self._phases, self._fused = blend.phases, blend.fused
        self._enter(0)

    def _enter(self, number: int) -> None:
        """Go to the first step of a phase."""
        self._number = number
        self._phase = self._phases[number]
        self._drawn = np.array(self._phase.drawn, np.int16)
        self._before = np.array(self._phase.before, np.int64)
        self._blender = self._phase.blender(fused=self._fused)
        self._left = self._phase.samples

    @property
    def taken(self) -> NDArray[np.int64]:
        """How often each corpus has been taken, in all phases so far."""
        found = self._before.copy()
        found[self._drawn] += np.array(self._blender.taken, np.int64)
        return found

    def _pieces(self, steps: int) -> Iterator[range]:
        """Yield the steps that are in one phase, while that is the current one."""
        done = 0
        while done < steps:
            if not self._left and self._number + 1 < len(self._phases):
                self._enter(self._number + 1)
            count = min(steps - done, self._left)
            if not count:
                raise IndexError("a blend has fewer steps left")
            yield range(done, done + count)
            self._left -= count
            done += count

    def next(self, corpora: NDArray[np.int16], samples: NDArray[np.int64]) -> None:
        """Make steps, and write the corpus and the sample in it."""
        for piece in self._pieces(len(corpora)):
            own = slice(piece.start, piece.stop)
            self._blender.next(corpora[own], samples[own])
            corpora[own] = self._drawn[corpora[own]]
            samples[own] += self._before[corpora[own]]

    def skip(self, steps: int) -> None:
        """Make steps without writing them."""
        for piece in self._pieces(steps):
            self._blender.skip(len(piece))

    def resume(self, taken: NDArray[np.int64]) -> None:
        """Continue from the state in which each corpus has been taken so often.

        Raises
        ------
        IndexError
            If no blend can be in that state.
        """
        step = int(taken.sum())
        begins = [phase.begin for phase in self._phases]
        self._enter(max(bisect.bisect_right(begins, step) - 1, 0))
        within = taken - self._before
        if (within < 0).any() or within.sum() != within[self._drawn].sum():
            raise IndexError("no blend is in this state")
        self._blender.resume(np.ascontiguousarray(within[self._drawn]))
        self._left -= int(within.sum())


def new_blender(blend: BlendPlan) -> Blender | PhasedBlender:
    """Return a blender before the first step of a blend."""
    if blend.phases:
        return PhasedBlender(blend)
    if blend.exhaustive:
        return Blender.exhaustive(np.array(blend.sizes, np.int64), blend.fused)
    return Blender.by_weight(np.array(blend.weights, np.float64), blend.fused)


def build_blend(
    blend: BlendPlan, places: dict[str, ArrayPlace], file: UnfinishedFile, workers: int = 1
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
    workers : int
        Number of threads.

    Returns
    -------
    dict of str to str
        The digest of each array.
    """
    own = _Slices(blend, range(blend.size), places, file, workers)
    own.draw()
    return {name: joined_digest([leaves]) for name, leaves in own.leaves().items()}


def write_steps(
    blender: Blender | PhasedBlender,
    steps: range,
    places: dict[str, ArrayPlace],
    file: UnfinishedFile,
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


class _Slice:
    """Steps of a blend that follow one another, drawn and written from some state."""

    def __init__(
        self, blend: BlendPlan, steps: range, places: dict[str, ArrayPlace], file: UnfinishedFile
    ) -> None:
        self._blend, self._steps = blend, steps
        self._places, self._file = places, file
        # how often each corpus has been taken before the steps, and after them
        self.begin = self.end = np.empty(0, np.int64)
        self.writers: BlendWriters = {}

    def draw(self, begin: NDArray[np.int64] | None = None) -> None:
        """Draw and write the steps from a state; by default from the estimated one."""
        blender = new_blender(self._blend)
        if begin is None:
            before = max(self._steps.start - RUN_UP, 0)
            blender.resume(_estimated(self._blend, before))
            blender.skip(self._steps.start - before)
        else:
            blender.resume(begin)
        self.begin = np.array(blender.taken, np.int64)
        self.writers = write_steps(blender, self._steps, self._places, self._file)
        self.end = np.array(blender.taken, np.int64)


class _Slices:
    """Steps of a blend that one rank makes, a slice by each thread.

    Parameters
    ----------
    blend : BlendPlan
        The blend.
    steps : range
        The steps; the first one is at the start of a leaf in both arrays.
    places : dict of str to ArrayPlace
        Place of each array in the file.
    file : UnfinishedFile
        The unfinished cache.
    workers : int
        Number of threads.
    """

    def __init__(
        self,
        blend: BlendPlan,
        steps: range,
        places: dict[str, ArrayPlace],
        file: UnfinishedFile,
        workers: int,
    ) -> None:
        bounds = slice_bounds(len(steps), workers, BLEND_SLICE)
        self._slices = [
            _Slice(blend, steps[first:last], places, file)
            for first, last in itertools.pairwise(bounds)
        ]

    def draw(self) -> None:
        """Draw all steps, each slice from its estimated state, until all slices meet."""
        map_in_threads(_Slice.draw, self._slices, len(self._slices))
        self._meet()

    def draw_from(self, begin: NDArray[np.int64]) -> None:
        """Draw the steps again that were drawn from another state than this one."""
        self._slices[0].draw(begin)
        self._meet()

    def _meet(self) -> None:
        """Draw a slice again if it does not begin where the slice before it ended."""
        for before, own in itertools.pairwise(self._slices):
            if not np.array_equal(own.begin, before.end):
                own.draw(before.end)

    @property
    def begin(self) -> NDArray[np.int64]:
        """How often each corpus has been taken before the steps."""
        return self._slices[0].begin

    @property
    def end(self) -> NDArray[np.int64]:
        """How often each corpus has been taken after the steps."""
        return self._slices[-1].end

    def leaves(self) -> dict[str, bytes]:
        """Return the leaf digests of each array."""
        writers = [own.writers for own in self._slices]
        return {
            name: b"".join(own[name].leaves().tobytes() for own in writers) for name in writers[0]
        }


class SplitBlend:
    """One blend, of which each rank makes a share, built by `build`.

    Parameters
    ----------
    job : Job
        The build.
    item : int
        Index of the blend into `Plan.items`.
    file : UnfinishedFile
        The unfinished cache.
    threads : int
        Threads of each rank.
    """

    def __init__(self, job: Job, item: int, file: UnfinishedFile, threads: int) -> None:
        self._communicator = job.communicator
        blend = job.plan.blends[item - len(job.plan.sections)]
        bounds = slice_bounds(blend.size, job.communicator.size, BLEND_SLICE)
        steps = range(bounds[job.communicator.rank], bounds[job.communicator.rank + 1])
        workers = blend_workers(len(steps), threads)
        self._own = _Slices(blend, steps, job.places(item), file, workers)

    def build(self) -> dict[str, str]:
        """Draw and write the blend. Collective.

        Returns
        -------
        dict of str to str
            The digest of each array, on all ranks.
        """
        communicator = self._communicator
        on_all_ranks(communicator, self._own.draw, "drawing a blend")
        # Each round at least the first wrong share becomes valid; in general all do.
        while wrong := self._wrong_ranks():
            begin = self._exchange_end_states(wrong)
            again = partial(self._draw_again, begin)
            on_all_ranks(communicator, again, "drawing slices of a blend again")
        return joined_digests(communicator, self._own.leaves())

    def _draw_again(self, begin: NDArray[np.int64] | None) -> None:
        """Draw the share from the end state of the share before it, if it began elsewhere."""
        if begin is not None:
            self._own.draw_from(begin)

    def _wrong_ranks(self) -> list[int]:
        """Return the ranks whose begin differs from the end of the share before. Collective."""
        states = (self._own.begin, self._own.end)
        mine = tuple(xxhash.xxh3_128_hexdigest(state.tobytes()) for state in states)
        shares = self._communicator.allgather(mine, tuple[str, str], "states of a blend")
        pairs = itertools.pairwise(shares)
        return [rank for rank, (before, own) in enumerate(pairs, 1) if own[0] != before[1]]

    def _exchange_end_states(self, ranks: Sequence[int]) -> NDArray[np.int64] | None:
        """Send some ranks the end state of the rank before; return this rank's. Collective."""
        me, begin = self._communicator.rank, None
        sends = [Message(me + 1, self._own.end)] if me + 1 in ranks else []
        if me in ranks:
            begin = np.empty_like(self._own.begin)
        receives = [] if begin is None else [Message(me - 1, begin)]
        self._communicator.exchange(sends, receives, "states of a blend")
        return begin


def _estimated(blend: BlendPlan, step: int) -> NDArray[np.int64]:
    """Return about how often each corpus has been taken before a step."""
    if not blend.phases:
        sizes = np.array(blend.sizes or [ENDLESS] * len(blend.weights), np.int64)
        return estimate_counts(
            np.array(blend.weights or sizes / sizes.sum(), np.float64), sizes, step
        )
    phase = max((p for p in blend.phases if p.begin <= step), key=lambda p: p.begin)
    taken, drawn = np.array(phase.before, np.int64), phase.drawn
    weights = np.array(normalize([phase.weights[corpus] for corpus in drawn]), np.float64)
    endless = np.full(len(drawn), ENDLESS)
    taken[drawn] += estimate_counts(weights, endless, step - phase.begin)
    return taken
