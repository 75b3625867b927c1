"""The steps of a run, as the logs of its jobs say them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distcache.errors import ConfigError
from distcache.ledger.steps import MAX_STEPS, Steps
from distcache.megatron.batch_sizes import batch_sizes
from distcache.megatron.run_options import RunOptions, run_of_log
from distcache.megatron.training_log import LoggedIteration, LoggedJob, logged_value
from distcache.megatron.training_options import Training


class LoggedSteps(NamedTuple):
    """What logs say."""

    steps: Steps  # iterations that a later job did again occur twice
    options: list[RunOptions]  # of each job
    notes: list[str]  # what was guessed


class _Job(NamedTuple):
    """A job, and what is known of its beginning."""

    log: LoggedJob
    options: RunOptions
    begin: int  # iteration after which it began
    consumed: int | None  # samples of the run at that time; None if it is not known


def logged_steps(jobs: Sequence[LoggedJob], given: Mapping[str, Any] | None = None) -> LoggedSteps:
    """Return the steps of the jobs of a run, in their order, as their logs say them.

    Lines need not be of every iteration: those between have the batch size of the line after them,
    if that fits the samples that were consumed, or the sizes that the logged options give. The
    iterations between the last line of a job and the checkpoint from which the next one began are
    filled in by the same rule.

    Parameters
    ----------
    jobs : sequence of LoggedJob
        Jobs, in their order.
    given : mapping of str to value, or None
        Options that count instead of those in the logs.

    Raises
    ------
    ConfigError
        If lines contradict one another.
    """
    parts: list[Steps] = []
    options: list[RunOptions] = []
    notes: list[str] = []
    consumed_at = {0: 0}
    skipped: list[int] = []  # of the job before
    notes += _wrong_order(jobs)
    for log in jobs:
        own = run_of_log(log, given)
        notes += [*own.unread, *_again(log), *_other_batch(log, own, given or {})]
        _require_possible(log)
        begin = _begin(log, consumed_at, notes)
        if parts and begin > parts[-1].numbers[-1]:
            parts[-1] = _up_to_checkpoint(parts[-1], log, own, begin)
            parts[-1].skipped[:] = np.isin(parts[-1].numbers, skipped)
            consumed_at |= _ends_of(parts[-1])
        consumed_at = {number: end for number, end in consumed_at.items() if number <= begin}
        job = _Job(log, own, begin, _consumed_before(log, begin, consumed_at, bool(parts)))
        for part in parts:
            part.rolled_back[part.numbers > begin] = True
        steps = _steps_of_job(job)
        skipped = _skipped(job, notes, given or {})
        steps.skipped[:] = np.isin(steps.numbers, skipped)
        steps.jobs[:] = len(parts)
        parts.append(steps)
        options.append(own)
        consumed_at |= _ends_of(steps)
    return LoggedSteps(Steps.joined(parts), options, list(dict.fromkeys(notes)))


def _ends_of(steps: Steps) -> dict[int, int]:
    return dict(zip(steps.numbers.tolist(), steps.ends.tolist(), strict=True))


def _require_possible(log: LoggedJob) -> None:
    """Refuse lines that contradict one another, or the checkpoint before them."""
    first = log.iterations[0]
    if log.loaded and min(log.loaded) >= first.iteration:
        raise ConfigError(
            f"{log.path}: line {first.line}: is of iteration {first.iteration}, but a checkpoint "
            f"of iteration {log.loaded[-1]} was loaded before it"
        )
    before = LoggedIteration(first.iteration - 1, 0, 0)
    for one in log.iterations:
        steps, samples = one.iteration - before.iteration, one.consumed - before.consumed
        # each iteration takes a sample at least
        fewest = one.batch + (steps - 1 if before.line else 0)
        exact = before.line and steps == 1
        if one.batch < 1 or samples < fewest or (exact and samples != one.batch):
            ended = f"iteration {before.iteration} ended at {before.consumed}"
            raise ConfigError(
                f"{log.path}: line {one.line}: iteration {one.iteration} of {one.batch} samples "
                f"ended at {one.consumed} consumed samples, which cannot be: "
                f"{ended if before.line else 'a run begins at 0'}"
            )
        before = one


def _wrong_order(jobs: Sequence[LoggedJob]) -> Iterator[str]:
    """Yield that a job comes before the log with the checkpoint with which it began."""
    ends = [{one.iteration: one.consumed for one in log.iterations} for log in jobs]
    for number, log in enumerate(jobs):
        first = log.iterations[0]
        begin = next((at for at in reversed(log.loaded) if at < first.iteration), 0)
        began = first.consumed - (first.iteration - begin) * first.batch
        if not begin or any(begin in own for own in ends[:number]):
            continue
        for other in range(number + 1, len(jobs)):
            if jobs[other].path != log.path and ends[other].get(begin) == began:
                yield (
                    f"{log.path}: line {first.line}: began with the checkpoint of iteration "
                    f"{begin}, which is in {jobs[other].path}: are the logs in the order of their "
                    "jobs? the later one counts"
                )
                break


def _again(log: LoggedJob) -> list[str]:
    """Return that its lines alone say that it is another job than the previous one."""
    first = log.iterations[0]
    if not log.again:
        return []
    return [
        f"{log.path}: line {first.line}: iteration {first.iteration} again, and no line before it "
        "says that a job began: taken for one that went back; if it is the output of a second "
        "rank, leave that out of the log"
    ]


def _other_batch(log: LoggedJob, own: RunOptions, given: Mapping[str, Any]) -> list[str]:
    """Return that a batch size was given, and lines have another."""
    batch = given.get("global_batch_size")
    other = next((one for one in log.iterations if batch not in (None, one.batch)), None)
    if other is None or own.training.rampup_batch_size or own.training.step_batch_size_schedule:
        return []
    return [
        f"{log.path}: line {other.line}: has a global batch size of {other.batch}, which counts, "
        f"and not --global-batch-size {batch}"
    ]


def _interval(log: LoggedJob) -> int:
    """Return how many iterations a line is for."""
    known = logged_value(log, "log_interval")
    if isinstance(known, int) and known > 0:
        return known
    numbers = [one.iteration for one in log.iterations]
    return int(np.diff(numbers).min()) if len(numbers) > 1 else 1


def _begin(log: LoggedJob, consumed_at: dict[int, int], notes: list[str]) -> int:
    """Return the iteration after which a job began, after jobs that had these iterations."""
    first = log.iterations[0]
    fitting = [iteration for iteration in log.loaded if iteration < first.iteration]
    if fitting:
        return fitting[-1]
    if len(consumed_at) == 1:  # the run's beginning, or its log was cut
        whole = log.arguments or first.consumed == first.iteration * first.batch
        return 0 if whole else first.iteration - 1
    # Its log does not have the line of a checkpoint: a line is for some iterations, at most.
    interval = _interval(log)
    if first.iteration <= interval:
        return 0
    fitting = [
        iteration
        for iteration, consumed in consumed_at.items()
        if first.iteration - interval <= iteration < first.iteration
        and consumed + (first.iteration - iteration) * first.batch == first.consumed
    ]
    found = max(fitting, default=first.iteration - 1)
    if interval > 1:
        notes.append(
            f"{log.path}: line {first.line}: no line before it says which checkpoint the job began "
            f"with; it is taken to be that of iteration {found}"
        )
    return found


def _consumed_before(
    log: LoggedJob, begin: int, consumed_at: dict[int, int], continues: bool
) -> int | None:
    """Return the samples that were consumed when a job began, if that is known.

    Raises
    ------
    ConfigError
        If the jobs before had consumed another number.
    """
    first = log.iterations[0]
    if_constant = first.consumed - (first.iteration - begin) * first.batch
    consumed = consumed_at.get(begin)
    if consumed is None and if_constant == begin * first.batch:
        return if_constant  # of a checkpoint whose job is not among the logs
    if consumed is not None and first.iteration == begin + 1 and consumed != if_constant:
        if continues:
            raise ConfigError(
                f"{log.path}: line {first.line}: iteration {first.iteration} began at "
                f"{if_constant} consumed samples, but iteration {begin} of the job before ended at "
                f"{consumed}: are the logs of one run, and in the order of its jobs?"
            )
        return None
    return consumed


def _up_to_checkpoint(steps: Steps, log: LoggedJob, options: RunOptions, begin: int) -> Steps:
    """Return the steps of a job with those up to the checkpoint from which the next one began.

    They are left out if no batch size fits.
    """
    last, consumed = int(steps.numbers[-1]), int(steps.ends[-1])
    first, count = log.iterations[0], begin - last
    if count > MAX_STEPS:
        return steps
    at_checkpoint = first.consumed - (first.iteration - begin) * first.batch
    size, rest = divmod(at_checkpoint - consumed, count)
    sizes = np.full(count, size, np.int64)
    if rest or size not in (first.batch, int(steps.ends[-1] - steps.begins[-1])):
        known = _by_options(options.training, first.iteration)
        if known is None:
            return steps
        ends = np.cumsum(known)
        if int(ends[-1]) != first.consumed or (last and int(ends[last - 1]) != consumed):
            return steps
        sizes = known[last:begin]
    more = Steps.of(np.arange(last + 1, begin + 1), consumed + np.cumsum(sizes), sizes)
    more.jobs[:] = steps.jobs[-1]
    return Steps.joined([steps, more])


def _steps_of_job(job: _Job) -> Steps:
    """Return the iterations of a job, with those between the lines of its log."""
    lines = np.array([one[:3] for one in job.log.iterations], np.int64)
    if int(lines[-1, 0]) - job.begin > MAX_STEPS:
        raise ConfigError(
            f"{job.log.path}: has iterations {job.begin} to {lines[-1, 0]}, more than the "
            f"{MAX_STEPS:,} of a job that are read"
        )
    numbers = np.concatenate([[job.begin], lines[:, 0]])
    ends = np.concatenate([[-1 if job.consumed is None else job.consumed], lines[:, 1]])
    counts, sizes = np.diff(numbers), lines[:, 2]
    regular = np.diff(ends) == counts * sizes
    regular[0] &= job.consumed is not None
    if not regular.all():
        by_options = _by_options(job.options.training, int(numbers[-1]))
        if by_options is not None and (np.cumsum(by_options)[numbers[1:] - 1] == ends[1:]).all():
            own = np.arange(job.begin + 1, len(by_options) + 1, dtype=np.int64)
            return Steps.of(own, np.cumsum(by_options)[job.begin :], by_options[job.begin :])
        counts[~regular] = 1  # batch sizes changed between two lines
    left = np.repeat(np.cumsum(counts) - 1, counts) - np.arange(counts.sum())
    sizes = np.repeat(sizes, counts)
    return Steps.of(
        np.repeat(numbers[1:], counts) - left, np.repeat(ends[1:], counts) - left * sizes, sizes
    )


def _by_options(training: Training, count: int) -> NDArray[np.int64] | None:
    """Return the sizes of the first batches by the logged options, if they say them."""
    try:
        return batch_sizes(training, count)
    except ConfigError:
        return None


def _skipped(job: _Job, notes: list[str], given: Mapping[str, Any]) -> list[int]:
    """Return the iterations of a job that ``--iterations-to-skip`` has left out.

    Those behind its last line are among them: the job may have gone on to a checkpoint. What is
    given counts for all jobs, of which some may have had another value: then lines decide.
    """
    lines = {one.iteration for one in job.log.iterations}
    count_from = _skips_count_from(job, notes, decided="iterations_to_skip" in given)
    numbers = job.options.skipped(count_from)
    return [number for number in numbers if number > job.begin and number not in lines]


def _skips_count_from(job: _Job, notes: list[str], *, decided: bool) -> int | None:
    """Return from which number the iterations to skip are counted; None if nothing says it.

    Megatron writes no line for them. So lines say it where the release is not known.

    Raises
    ------
    ConfigError
        If an iteration that the log itself names has a line in any case, unless that is decided.
    """
    lines = {one.iteration: one.line for one in job.log.iterations}
    last, given = job.log.iterations[-1].iteration, job.options.skips_count_from
    ways = {
        first: [n for n in job.options.skipped(first) if job.begin < n <= last]
        for first in ([1, 0] if given is None else [given])
    }
    possible = [first for first, numbers in ways.items() if lines.keys().isdisjoint(numbers)]
    listed = ", ".join(map(str, job.options.iterations_to_skip))
    if not possible and decided:
        return given
    if not possible:
        line, logged = min((lines[n], n) for own in ways.values() for n in own if n in lines)
        raise ConfigError(
            f"{job.log.path}: line {line}: is of iteration {logged}, which --iterations-to-skip "
            f"{listed} leaves out{'' if given is None else ' in this release'}, and Megatron logs "
            "none of these: give --iterations-to-skip, or --megatron RELEASE, as the job had it"
        )
    if len(possible) == 1:
        return possible[0]
    if 0 not in job.options.iterations_to_skip and ways[0] != ways[1]:
        notes.append(
            f"{job.log.path}: --iterations-to-skip {listed}: Megatron up to 0.16 counts them from "
            "0, later releases from 1, and the lines do not say which; taken from 1: give "
            "--megatron RELEASE"
        )
    return None
