"""The jobs of a run, with the steps of each: by options, or by logs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from distcache.cache.deal import Deal
from distcache.errors import ConfigError
from distcache.ledger.consumed import Consumed
from distcache.ledger.steps import (
    Sampling,
    Steps,
    evaluation_steps,
    evaluations_within,
)
from distcache.ledger.trace import Trace
from distcache.ledger.traced_run import TracedRun
from distcache.megatron.run_options import RunOptions
from distcache.storage.units import counted

NO_STEPS = (
    "--steps: which samples a step takes follows from --log FILE, or from options: "
    "--global-batch-size N, or a whole training command after --"
)
BEYOND = (
    "took samples beyond the {} that the split has: the log, or the options, are those of another "
    "cache"
)


def runs_of(
    trace: Trace,
    consumed: Consumed,
    *,
    last: int | None = None,
    begin_at: int = 0,
    deal: Deal | None = None,
) -> tuple[list[TracedRun], list[str]]:
    """Return the jobs of a run over a split.

    Parameters
    ----------
    trace : Trace
        The split.
    consumed : Consumed
        Samples of training that the run consumed.
    last : int or None
        Step before which all evaluations that are asked for are.
    begin_at : int
        Samples of training before the first of the cache.
    deal : Deal or None
        Deal of the steps of training, if there was one.

    Returns
    -------
    runs : list of TracedRun
        One for each job, and one without steps' numbers for what was consumed by unknown steps.
    notes : list of str
        Steps that are not of this cache.

    Raises
    ------
    ConfigError
        If an option is missing, or Megatron would refuse it; or steps were not dealt so.
    """
    split, chosen = trace.split, consumed.options
    if split != "train":
        run = TracedRun(trace, Sampling.of_run(chosen[-1], split))
        steps = _evaluations(trace, chosen[-1], last)
        total = None if run.order.repeats else len(trace)
        run.steps = steps.within(0, total)
        beyond = len(steps.numbers) - len(run.steps.numbers)
        return [run], [f"{counted(beyond, 'evaluation')} {BEYOND.format(total)}"] if beyond else []
    notes: list[str] = []
    found = []
    for number, own in enumerate(chosen):
        run = TracedRun(trace, Sampling.of_run(own, split))
        steps = consumed.steps.take(consumed.steps.jobs == number)
        total = None if run.order.repeats else len(trace)
        notes += _other_ranks(run, steps, begin_at)
        notes += _doubts(trace, run.sampling, own, steps, logged=consumed.logged)
        run.steps = steps.within(begin_at, total)
        found.append(run)
        beyond = int(np.count_nonzero(steps.ends - begin_at > len(trace)))
        if beyond and total is not None:
            notes.append(f"{counted(beyond, 'step')} {BEYOND.format(total)}; see --begin-at")
    unknown = consumed.unknown.clipped(begin_at, total)
    if len(unknown.numbers):
        found.append(TracedRun(trace, run.sampling, unknown))
    if deal is not None:
        for run in found:
            run.deal(deal)
    return found, notes


def _doubts(
    trace: Trace, sampling: Sampling, options: RunOptions, steps: Steps, *, logged: bool
) -> list[str]:
    """Return why a run may not be one of this cache; refuse options that Megatron would refuse."""
    notes = []
    length, own = trace.cache.sequence_length, options.training.seq_length
    if own not in (1, length):  # a log may not say it
        notes.append(f"the run has samples of {own} tokens, the cache of {length}: it is another's")
    if partial := sampling.partial_steps(steps):
        text = (
            f"{counted(partial, 'step')} took no whole micro batches of "
            f"{sampling.micro_batch_size} for {sampling.data_parallel_size} ranks"
        )
        if not logged:
            raise ConfigError(text)
        notes.append(text)
    return notes


def _other_ranks(run: TracedRun, steps: Steps, begin_at: int) -> list[str]:
    """Return that Megatron's ranks are in different epochs, where an epoch's last step is partial.

    Its sampler gives some ranks one micro batch more of a shuffled epoch, and these enter the next
    one with its second step (``MegatronPretrainingRandomSampler`` of 0.19.2).
    """
    sampling, total = run.sampling, len(run.trace)
    micro, ranks = sampling.micro_batch_size or 1, sampling.data_parallel_size or 1
    epoch = run.order.epoch
    further = total - total % micro - epoch
    late = steps.numbers[steps.ends - begin_at > epoch]
    if sampling.kind != "cyclic" or further <= ranks * (micro - 1) or not len(late):
        return []
    return [
        f"{further} samples are left after the whole steps of an epoch: from step {late[0]} on, in "
        "the first step of each epoch, some of Megatron's ranks get these instead of those that "
        "are said here"
    ]


def _evaluations(trace: Trace, options: RunOptions, last: int | None) -> Steps:
    """Return the evaluations of validation; of test, the one at the end of training."""
    training, sampling = options.training, Sampling.of_run(options, trace.split)
    if trace.split == "valid":
        return evaluations_within(training, len(trace), sampling, last)
    steps = evaluation_steps(training, 1, len(trace), sampling)
    return Steps.of(
        np.array([training.train_iters or int(steps.numbers[0])]), steps.ends, steps.ends
    )


def require_steps(runs: Sequence[TracedRun], first: int, last: int) -> list[str]:
    """Return which steps from one number up to another, which is not among them, runs lack.

    Raises
    ------
    ConfigError
        If there is no such step, or none is known.
    """
    if any(run.steps is None for run in runs):
        raise ConfigError(NO_STEPS)
    if first < 1:
        raise ConfigError(f"--steps {first}:{last}: steps have numbers from 1 on, as in Megatron")
    numbers = np.concatenate([run.steps.numbers for run in runs if run.steps is not None])
    known = numbers[numbers > 0]
    asked = known[(known >= first) & (known < last)]
    have = f"steps {known.min()} to {known.max()}" if len(known) else "no steps"
    gaps = [gap for gap in _unknown_steps(numbers) if gap[0] < last and first <= gap[1]]
    because = "".join(f"; no line says the samples of the steps {a} to {b}" for a, b in gaps)
    if not len(asked):
        raise ConfigError(
            f"--steps {first}:{last}: the run has {have} of this split and cache{because}"
        )
    missing = last - first - len(np.unique(asked))
    between = runs[0].trace.split != "train"  # evaluations are some steps apart
    if between or not missing:
        return []
    return [f"the run has {have}, without {missing} of those{because}"]


def _unknown_steps(numbers: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last number of steps whose samples are known only together.

    The numbers of steps as `Consumed.unknown` has them are -1 less the step before.
    """
    for before in (-1 - numbers[numbers < 0]).tolist():
        following = numbers[numbers > before]
        if len(following):
            yield before + 1, int(following.min()) - 1
