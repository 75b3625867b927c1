"""The jobs of a run, with the steps of each: by options, or by logs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distcache.errors import ConfigError
from distcache.ledger.steps import (
    Sampling,
    Steps,
    evaluation_steps,
    evaluations_within,
    logged_steps,
    steps_within,
    training_steps,
)
from distcache.ledger.trace import Trace
from distcache.ledger.traced_run import TracedRun
from distcache.megatron.run_options import RunOptions, run_of_log
from distcache.megatron.training_log import LoggedJob
from distcache.storage.units import counted

NO_STEPS = (
    "--steps: which samples a step takes follows from --log FILE, or from options: "
    "--global-batch-size N, or a whole training command after --"
)


def runs_of(
    trace: Trace,
    jobs: Sequence[LoggedJob] = (),
    options: RunOptions | None = None,
    *,
    last: int | None = None,
    begin_at: int = 0,
) -> tuple[list[TracedRun], list[str]]:
    """Return the jobs of a run over a split.

    Parameters
    ----------
    trace : Trace
        The split.
    jobs : sequence of LoggedJob
        Jobs whose logs are known, in their order.
    options : RunOptions or None
        Options of the run; by default those in the logs, of each job its own.
    last : int or None
        Step before which all that are asked for are; by default as many steps as the options or
        the samples of the split say.
    begin_at : int
        Samples of training before the first of the cache.

    Returns
    -------
    runs : list of TracedRun
        One for each job, without steps where neither a log nor options are given.
    notes : list of str
        Steps that are not known, or not of this cache.

    Raises
    ------
    ConfigError
        If an option is missing, or Megatron would refuse it.
    """
    if options is None and not jobs:
        return [TracedRun(trace, Sampling())], []
    chosen = [options or run_of_log(job) for job in jobs]
    if options is not None and not jobs:
        chosen = [options]
    split = trace.split
    notes: list[str] = []
    if split != "train":
        sampling = Sampling.of_run(chosen[-1], split)
        return [TracedRun(trace, sampling, _evaluations(trace, chosen[-1], last))], []
    if jobs:
        whole, notes = logged_steps(jobs)
    elif last is not None:
        own = chosen[0]
        count = max(last - 1, 0)
        if Sampling.of_run(own, split).kind == "single":  # a step takes a sample at least
            count = min(count, len(trace) + begin_at)
        whole = training_steps(own.training, count, own.iterations_to_skip)
    else:
        whole = steps_within(chosen[0], len(trace) + begin_at)
    found = []
    for number, own in enumerate(chosen):
        run = TracedRun(trace, Sampling.of_run(own, split))
        steps = whole.take(whole.jobs == number) if jobs else whole
        total = None if run.order.repeats else len(trace)
        notes += _doubts(trace, run.sampling, own, steps, logged=bool(jobs))
        run.steps = steps.within(begin_at, total)
        found.append(run)
        beyond = int(np.count_nonzero(steps.ends - begin_at > len(trace)))
        if beyond and total is not None:
            notes.append(
                f"{counted(beyond, 'step')} took samples beyond the {total} that the split has: "
                "the log, or the options, are those of another cache; see --begin-at"
            )
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
    known = np.concatenate([run.steps.numbers for run in runs if run.steps is not None])
    asked = known[(known >= first) & (known < last)]
    have = f"steps {known.min()} to {known.max()}" if len(known) else "no steps"
    if not len(asked):
        raise ConfigError(f"--steps {first}:{last}: the run has {have} of this split and cache")
    missing = last - first - len(np.unique(asked))
    between = runs[0].trace.split != "train"  # evaluations are some steps apart
    return [] if between or not missing else [f"the run has {have}, without {missing} of those"]
