"""What a run consumed of the samples of training, as far as known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from distcache.ledger.logged_steps import logged_steps
from distcache.ledger.steps import Sampling, Steps, steps_within, training_steps
from distcache.megatron.run_options import RunOptions
from distcache.megatron.training_log import LoggedJob
from distcache.storage.units import counted

NO_STEPS = Steps.of(*np.empty((3, 0), np.int64))


@dataclass(frozen=True, eq=False)
class Consumed:
    """What a run consumed.

    Attributes
    ----------
    samples : int
        Samples that it consumed in the end, those that nobody knows the step of included.
    steps : Steps
        Steps that are known, those that were rolled back included; none if only a number is known.
    unknown : Steps
        Ranges of samples that were consumed by no known step.
    options : list of RunOptions
        Options of each job.
    notes : list of str
        Sentences that say what was guessed.
    logged : bool
        Whether logs say it.
    """

    samples: int
    steps: Steps
    unknown: Steps
    options: list[RunOptions]
    notes: list[str]
    logged: bool = False

    @classmethod
    def of_number(cls, samples: int, options: RunOptions | None = None) -> Consumed:
        """Return that the first samples were consumed, by steps that were not asked for."""
        return cls(samples, NO_STEPS, NO_STEPS, [] if options is None else [options], [])

    @classmethod
    def of_logs(cls, jobs: Sequence[LoggedJob], given: Mapping[str, Any] | None = None) -> Consumed:
        """Return what the logs of jobs say; raises as `logged_steps`."""
        steps, options, notes = logged_steps(jobs, given)
        lasting = steps.take(~steps.rolled_back)
        samples = int(lasting.ends.max(initial=0))
        return cls(samples, steps, _unknown(lasting), options, notes, True)

    @classmethod
    def of_options(cls, options: RunOptions, places: int, last: int | None = None) -> Consumed:
        """Return what options say of a run, up to a step or as far as it goes.

        Parameters
        ----------
        options : RunOptions
            The options.
        places : int
            Samples that there are.
        last : int or None
            Step before which all that are asked for are.

        Raises
        ------
        ConfigError
            If an option is missing, or Megatron would refuse it.
        """
        if last is None:
            steps = steps_within(options, places)
        else:
            count = max(last - 1, 0)
            if Sampling.of_run(options, "train").kind == "single":  # a step takes a sample at least
                count = min(count, places)
            steps = training_steps(options.training, count, options.skipped())
        notes = []
        if steps.skipped.any() and options.skips_count_from is None:
            notes.append(
                "--iterations-to-skip: counted from 1, as in Megatron since 0.17; up to 0.16 they "
                "count from 0: give --megatron RELEASE"
            )
        return cls(int(steps.ends.max(initial=0)), steps, NO_STEPS, [options], notes)

    def learned(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges of samples that training has learned from, ascending.

        Those that were skipped are left out; those that nobody knows the step of are not.
        """
        skipped = self.steps.take(self.steps.skipped & ~self.steps.rolled_back)
        begin = 0
        for low, high in zip(skipped.begins.tolist(), skipped.ends.tolist(), strict=True):
            if begin < low:
                yield begin, low
            begin = high
        if begin < self.samples:
            yield begin, self.samples

    def summary(self) -> list[str]:
        """Return sentences for a user: what was consumed, what is not known, what was guessed."""
        steps, found = self.steps, []
        if len(steps.numbers):
            parts = [
                f"{counted(len(steps.numbers), 'step')} of {counted(len(self.options), 'job')}",
                *(
                    f"{counted(int(chosen.sum()), 'step')} {what}"
                    for what, chosen in (
                        ("rolled back", steps.rolled_back),
                        ("skipped", steps.skipped & ~steps.rolled_back),
                    )
                    if chosen.any()
                ),
            ]
            found.append(f"the run consumed {counted(self.samples, 'sample')}: {', '.join(parts)}")
        own = self.unknown
        for begin, end, after in zip(own.begins, own.ends, own.numbers, strict=True):
            found.append(
                f"samples {begin} to {end - 1} of the run were consumed by steps after iteration "
                f"{-after - 1} that no line says the samples of: log every iteration "
                "(--log-interval 1), and give the logs of all jobs"
            )
        return [*found, *self.notes]


def _unknown(steps: Steps) -> Steps:
    """Return the ranges of samples between steps, as steps without a number.

    The number of each is -1 less the iteration before it.
    """
    order = np.argsort(steps.begins, kind="stable")
    begins = steps.begins[order]
    ends = np.concatenate([[0], np.maximum.accumulate(steps.ends[order])])[:-1]
    before = np.concatenate([[0], steps.numbers[order]])[:-1]
    gaps = begins > ends
    found = Steps.of(-1 - before[gaps], begins[gaps], (begins - ends)[gaps])
    found.jobs[:] = -1
    return found
