"""A blend whose weights change during training.

The sections are those of one blend by the mean weights, as Megatron builds them. Within a phase the
corpora that have a weight are drawn by Megatron's rule from its start; each corpus continues where
the previous phase left it. The last phase is longer by what Megatron's rounding adds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import numpy as np

from distcache.errors import ConfigError
from distcache.kernels import Blender
from distcache.plan.config import Phase
from distcache.plan.sizes import normalize

MAX_SAMPLES: Final = 1 << 33  # a plan goes through all of them


class BlendPhase(msgspec.Struct, frozen=True):
    """A phase of a blend."""

    begin: int  # first step
    samples: int
    weights: tuple[float, ...]  # as they were given, of all corpora of the blend; some may be 0
    # samples of each corpus that were taken at its begin, and at its end
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def drawn(self) -> list[int]:
        """The corpora that have a weight, which is what the phase draws from."""
        return [corpus for corpus, weight in enumerate(self.weights) if weight > 0]

    def blender(self, *, fused: bool) -> Blender:
        """Return Megatron's blend of the corpora that have a weight, before its first step.

        Megatron divides the weights by their sum twice.
        """
        weights = normalize(normalize([self.weights[corpus] for corpus in self.drawn]))
        return Blender.by_weight(np.array(weights, np.float64), fused)


def phase_problems(phases: Sequence[Phase], corpora: int, sequence_length: int) -> list[str]:
    """Return what is wrong with phases over so many corpora."""
    problems = []
    for number, phase in enumerate(phases):
        where = f"$.phases[{number}]"
        samples = phase.samples_of(sequence_length)
        if samples is None:
            problems.append(f"{where}: give samples, or tokens, or steps with batch_size")
        elif samples > MAX_SAMPLES:
            problems.append(f"{where}: {samples} samples, expected at most {MAX_SAMPLES}")
        if len(phase.weights) != corpora:
            problems.append(f"{where}.weights: {len(phase.weights)} for {corpora} corpora")
        elif not 0 < math.fsum(phase.weights) < math.inf:
            problems.append(f"{where}.weights: add up to nothing, expected a positive number")
    return problems


def mean_weights(
    phases: Sequence[Phase], sequence_length: int, prefixes: Sequence[str]
) -> list[float]:
    """Return the share of each corpus of all phases together.

    Raises
    ------
    ConfigError
        If a corpus has no weight in any phase.
    """
    samples = [phase.samples_of(sequence_length) or 0 for phase in phases]
    shares = [normalize(list(phase.weights)) for phase in phases]
    total = sum(samples)
    found = [
        math.fsum(count * own[corpus] for count, own in zip(samples, shares, strict=True)) / total
        for corpus in range(len(shares[0]))
    ]
    never = [corpus for corpus, share in enumerate(found) if not share > 0]
    if never:
        raise ConfigError(f"$.phases: {prefixes[never[0]]} has no weight in any phase; drop it")
    return found


def lay_out_phases(
    phases: Iterable[Phase], sequence_length: int, size: int, *, fused: bool
) -> tuple[BlendPhase, ...]:
    """Return the phases of a blend of so many samples.

    Parameters
    ----------
    phases : iterable of Phase
        Sound phases, of at most `size` samples together; there may be none.
    sequence_length : int
        Tokens of a sample.
    size : int
        Samples of the blend.
    fused : bool
        Whether ``weight * step - taken`` is rounded once.
    """
    given = list(phases)
    if not given:
        return ()
    counts = [phase.samples_of(sequence_length) or 0 for phase in given]
    begins = list(itertools.accumulate(counts, initial=0))[:-1]
    ends = [*begins[1:], size]
    taken = [0] * len(given[0].weights)
    found = []
    for phase, begin, end in zip(given, begins, ends, strict=True):
        alone = BlendPhase(begin, end - begin, phase.weights, tuple(taken), ())
        blender = alone.blender(fused=fused)
        blender.skip(end - begin)
        for corpus, count in zip(alone.drawn, blender.taken, strict=True):
            taken[corpus] += int(count)
        found.append(msgspec.structs.replace(alone, after=tuple(taken)))
    return tuple(found)
