"""The batch sizes of Megatron's iterations: constant, ramped up, or by a schedule.

Read from ``megatron/core/num_microbatches_calculator.py`` of megatron-core 0.16.1 to 0.19.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distcache.errors import ConfigError
from distcache.megatron.training_options import Training, require_counts

FACTORS: Final = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
MAX_BATCH: Final = 1 << 34  # samples: of `MAX_STEPS` steps they can be summed up
MAX_RAMP_BATCHES: Final = 100_000_000  # batches


def global_batch_size(training: Training) -> int:
    """Return the global batch size; with a ramp, that after it.

    Raises
    ------
    ConfigError
        If it is missing.
    """
    if training.step_batch_size_schedule and training.global_batch_size is not None:
        raise ConfigError("--step-batch-size-schedule cannot be combined with --global-batch-size")
    batch = training.global_batch_size
    if batch is None and training.micro_batch_size and training.data_parallel_size:
        batch = training.micro_batch_size * training.data_parallel_size
    if batch is None or batch < 1:
        raise ConfigError(
            "--global-batch-size: missing or below 1; without it Megatron takes --micro-batch-size "
            "times the ranks that have a model of their own: give both, the second as "
            "--data-parallel-size"
        )
    if batch > MAX_BATCH:
        raise ConfigError(f"--global-batch-size: {batch}: is more than {MAX_BATCH:,} samples")
    return batch


class Ramp(NamedTuple):
    """Batch sizes that grow in steps."""

    start: int
    increment: int
    samples: int  # up to which it lasts
    steps: int
    final: int  # batch size after it

    def size_at(self, consumed: int) -> int:
        """Return the batch size after so many samples."""
        if consumed > self.samples:
            return self.final
        return self.start + int(consumed / (self.samples / self.steps)) * self.increment


def ramp_of(training: Training, batch: int) -> Ramp | None:
    """Return the ramp up to a batch size, if there is one.

    Raises
    ------
    ConfigError
        If the options are not a ramp, or the release is not known: since 0.18 a ramp changes
        nothing.
    """
    if training.rampup_batch_size is None:
        return None
    if training.megatron is None:
        raise ConfigError(
            "--rampup-batch-size: say which release counts, with --megatron RELEASE; since 0.18 it "
            "changes nothing"
        )
    if training.megatron >= "0.18":
        return None
    start, increment, samples = training.rampup_batch_size
    steps, rest = divmod(batch - start, increment) if increment > 0 else (0, 0)
    if start < 1 or samples < 1 or steps < 1 or rest:
        raise ConfigError(
            f"--rampup-batch-size: {start} {increment} {samples}: expected a first size, an "
            f"increment that leads to {batch}, and samples"
        )
    return Ramp(start, increment, samples, steps, batch)


def batch_size_steps(training: Training) -> list[tuple[int, int]]:
    """Return (first sample, batch size) pairs of a schedule.

    Raises
    ------
    ConfigError
        If it is no schedule.
    """
    text = training.step_batch_size_schedule or ""
    try:
        pairs = [entry.split(":", 1) for entry in text.replace(",", " ").split()]
        steps = sorted(
            (_number(begin) // training.seq_length, _number(size)) for begin, size in pairs
        )
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"--step-batch-size-schedule: {text!r}: {error}") from error
    begins = [begin for begin, _ in steps]
    if not steps or begins[0] != 0 or len(set(begins)) < len(begins):
        raise ConfigError(
            f"--step-batch-size-schedule: {text!r}: expected a batch size from 0 on, and no two "
            "from the same sample on"
        )
    if not 1 <= min(size for _, size in steps) <= max(size for _, size in steps) <= MAX_BATCH:
        raise ConfigError(
            f"--step-batch-size-schedule: {text!r}: expected batch sizes from 1 to {MAX_BATCH:,}"
        )
    return steps


def _number(text: str) -> int:
    text = text.strip().upper()
    factor = FACTORS.get(text[-1:], 1)
    return int(float(text if factor == 1 else text[:-1]) * factor)


def batch_sizes(training: Training, count: int) -> NDArray[np.int64]:
    """Return the samples of each of the first iterations, over all ranks.

    Parameters
    ----------
    training : Training
        Options of training, of which its length is not needed.
    count : int
        Number of iterations.

    Returns
    -------
    ndarray of int64, shape (count,)
        Samples of each iteration.

    Raises
    ------
    ConfigError
        If something is missing, or Megatron would refuse it.
    """
    require_counts(training)
    if training.step_batch_size_schedule:
        if training.decrease_batch_size_if_needed:
            raise ConfigError("--step-batch-size-schedule: batches are not decreased with it")
        return _scheduled(batch_size_steps(training), count)
    batch, unit = global_batch_size(training), 1
    if training.decrease_batch_size_if_needed:
        if not training.micro_batch_size or not training.data_parallel_size:
            raise ConfigError(
                "--decrease-batch-size-if-needed: give --micro-batch-size and --data-parallel-size"
            )
        unit = training.micro_batch_size * training.data_parallel_size
    sizes = np.full(count, batch // unit * unit, np.int64)
    ramp, consumed = ramp_of(training, batch), 0
    if ramp is not None:
        for iteration in range(count):
            if consumed > ramp.samples:
                break
            sizes[iteration] = ramp.size_at(consumed) // unit * unit
            consumed += int(sizes[iteration])
            if not sizes[iteration]:
                break
    if count and sizes.min() < 1:
        raise ConfigError(f"a batch has fewer samples than {unit}, a micro batch of all ranks")
    return sizes


def _scheduled(steps: Sequence[tuple[int, int]], count: int) -> NDArray[np.int64]:
    """Return the batches of a schedule: each size holds from its sample on."""
    pieces: list[NDArray[np.int64]] = []
    consumed = done = 0
    ends = [*(begin for begin, _ in steps[1:]), None]
    for (_, size), end in zip(steps, ends, strict=True):
        left = count - done
        batches = left if end is None else min(max(0, -(-(end - consumed) // size)), left)
        pieces.append(np.full(batches, size, np.int64))
        consumed, done = consumed + batches * size, done + batches
    return np.concatenate(pieces)
