"""The samples of the steps of a run, some at a time; and the steps that saw a document."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from distcache.cache.deal import Deal, DealtSplit
from distcache.errors import ConfigError
from distcache.ledger.steps import Sampling, Steps
from distcache.ledger.trace import Trace, TracedSamples
from distcache.megatron.sampling import Order

CHUNK_SAMPLES: Final = 1 << 20  # samples


class StepSamples(NamedTuple):
    """Samples, and where training got them.

    Attributes
    ----------
    traced : TracedSamples
        The samples.
    steps : Steps or None
        Steps; None if only positions were asked for.
    rows : ndarray of int64, shape (samples,)
        Step of each sample: an index into `steps`.
    ranks : tuple of ndarray of int64, or None
        Micro batch, rank and slot of each sample; None if it is not known.
    """

    traced: TracedSamples
    steps: Steps | None
    rows: NDArray[np.int64]
    ranks: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]] | None


class TracedRun:
    """A run over a split.

    Parameters
    ----------
    trace : Trace
        The split.
    sampling : Sampling
        Rule that assigns samples to ranks.
    steps : Steps or None
        Steps of the run; None where only positions are known.

    Raises
    ------
    ConfigError
        If the order depends on what `sampling` does not say.
    """

    def __init__(self, trace: Trace, sampling: Sampling, steps: Steps | None = None) -> None:
        self.trace = trace
        self.sampling = sampling
        self.steps = steps
        self.order: Order = sampling.order(len(trace))
        self._dealt: DealtSplit | None = None

    def deal(self, deal: Deal) -> None:
        """Set the deal of the steps. Sizes that the run does not say are those of the deal.

        Raises
        ------
        ConfigError
            If a step, or the ranks of the run, are none of the deal.
        """
        assert self.steps is not None, "there are steps"
        known = self.steps.take((self.steps.numbers > 0) & (self.steps.ends > deal.begin))
        other = (known.ends - known.begins != deal.batch) | (
            (known.begins - deal.begin) % deal.batch != 0
        )
        if self.sampling.kind != "single":
            raise ConfigError(f"--deal {deal}: the run did not take its samples in order")
        if other.any():
            step = known.take(np.flatnonzero(other)[:1])
            raise ConfigError(
                f"--deal {deal}: step {step.numbers[0]} has samples {step.begins[0]} to "
                f"{step.ends[0] - 1}, which are no step of the deal"
            )
        micro_batch = self.sampling.micro_batch_size or deal.micro_batch
        ranks = self.sampling.data_parallel_size or deal.ranks
        if not deal.is_for(micro_batch, ranks):
            raise ConfigError(
                f"--deal {deal}: the run has micro batches of {micro_batch} on {ranks} ranks; give "
                "the deal of the run, and logs of jobs with another deal apart"
            )
        self.sampling = msgspec.structs.replace(
            self.sampling, micro_batch_size=micro_batch, data_parallel_size=ranks
        )
        self._dealt = DealtSplit(self.trace, deal, self.trace.section)

    def of_steps(self, steps: Steps) -> Iterator[StepSamples]:
        """Yield the samples of steps, in their order; raises as `Trace.samples`."""
        sizes = steps.ends - steps.begins
        ends = np.cumsum(sizes)
        first = 0
        while first < len(ends):
            before = int(ends[first - 1]) if first else 0
            last = max(int(np.searchsorted(ends, before + CHUNK_SAMPLES, "right")), first + 1)
            rows = np.repeat(np.arange(first, last), sizes[first:last])
            within = (
                np.arange(len(rows))
                - np.repeat(ends[first:last] - sizes[first:last], sizes[first:last])
                + before
            )
            positions = self._positions(steps.take(np.arange(first, last)))
            if self._dealt is not None:
                within = self._dealt.places(positions) - steps.begins[rows]
            yield StepSamples(
                self.trace.samples(positions), steps, rows, self.sampling.ranks_of(within)
            )
            first = last

    def _positions(self, steps: Steps) -> NDArray[np.int64]:
        """Return the positions of steps; those that follow one another are drawn together."""
        cuts = np.flatnonzero(steps.begins[1:] != steps.ends[:-1]) + 1
        bounds = itertools.pairwise([0, *cuts.tolist(), len(steps.begins)])
        ranges = [(int(steps.begins[a]), int(steps.ends[b - 1])) for a, b in bounds if a < b]
        return np.concatenate([np.empty(0, np.int64), *(self.order.ids(*one) for one in ranges)])

    def of_positions(self, positions: range | NDArray[np.int64]) -> Iterator[StepSamples]:
        """Yield the samples at positions, without steps; raises as `Trace.samples`."""
        for begin in range(0, len(positions), CHUNK_SAMPLES):
            some = np.asarray(positions[begin : begin + CHUNK_SAMPLES], np.int64)
            yield StepSamples(self.trace.samples(some), None, np.empty(0, np.int64), None)

    def find(self, wanted: Mapping[int, NDArray[np.int64]]) -> Iterator[StepSamples]:
        """Yield the samples with a token of wanted sequences, with only the parts of these.

        Parameters
        ----------
        wanted : mapping of int to ndarray of int64
            Sequences, by the number of their corpus.
        """
        positions, steps = self.trace.find(wanted), self.steps
        if steps is None:
            for found in self.of_positions(positions):
                yield found._replace(traced=only_wanted(found.traced, wanted))
            return
        places, own, rows = self._places(positions, steps)
        for begin in range(0, len(places), CHUNK_SAMPLES):
            some = slice(begin, begin + CHUNK_SAMPLES)
            taken = places[some] if self._dealt is None else self._dealt.places(places[some])
            ranks = self.sampling.ranks_of(taken - steps.begins[rows[some]])
            if ranks is not None:  # of an unknown step they are not known
                micro_batches, own_ranks, slots = ranks
                known = steps.numbers[rows[some]] > 0
                ranks = (
                    np.where(known, micro_batches, -1),
                    np.where(known, own_ranks, -1),
                    np.where(known, slots, -1),
                )
            traced = only_wanted(self.trace.samples(own[some]), wanted)
            yield StepSamples(traced, steps, rows[some], ranks)

    def _places(
        self, positions: NDArray[np.int64], steps: Steps
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the places at which steps take positions, the positions, and the steps."""
        wanted = np.zeros(len(self.trace), bool)
        wanted[positions] = True
        found = [(np.empty(0, np.int64),) * 3]
        # The places of a job ascend; a job after it may begin again.
        cuts = np.flatnonzero(steps.begins[1:] < steps.ends[:-1]) + 1
        for first, last in itertools.pairwise([0, *cuts.tolist(), len(steps.begins)]):
            begins, ends = steps.begins[first:last], steps.ends[first:last]
            for places, own in self._taken(positions, wanted, begins, ends):
                step = np.searchsorted(begins, places, "right") - 1
                inside = places < ends[step]
                found.append((places[inside], own[inside], first + step[inside]))
        places, own, rows = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return places, own, rows

    def _taken(
        self,
        positions: NDArray[np.int64],
        wanted: NDArray[np.bool_],
        begins: NDArray[np.int64],
        ends: NDArray[np.int64],
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield the places of steps that have wanted positions, and these."""
        if not len(begins):
            return
        low, high = int(begins[0]), int(ends[-1])
        if self.sampling.kind == "single":
            own = positions[(positions >= low) & (positions < high)]
            yield own, own
            return
        for begin in range(low, high, CHUNK_SAMPLES):
            at = self.order.ids(begin, min(begin + CHUNK_SAMPLES, high))
            chosen = np.flatnonzero(wanted[at])
            yield begin + chosen, at[chosen]


def only_wanted(traced: TracedSamples, wanted: Mapping[int, NDArray[np.int64]]) -> TracedSamples:
    """Return samples with only those parts that are of wanted sequences."""
    corpora = np.repeat(traced.corpora, np.diff(traced.bounds))
    keep = np.zeros(len(corpora), bool)
    for source, sequences in wanted.items():
        keep |= (corpora == source) & np.isin(traced.sequences, sequences)
    sums = np.concatenate([[0], np.cumsum(keep)])
    return traced._replace(
        bounds=sums[traced.bounds],
        sequences=traced.sequences[keep],
        begins=traced.begins[keep],
        ends=traced.ends[keep],
        label_only=traced.label_only[keep],
    )
