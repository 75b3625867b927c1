"""The steps of a run: which places of its order each takes, and which rank gets which of them.

A place counts the samples that all ranks have consumed. In Megatron's ``single`` order the sample
at a place has the same position in the split; the others shuffle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from distcache.errors import ConfigError
from distcache.megatron.batch_sizes import batch_sizes, global_batch_size
from distcache.megatron.run_options import RunOptions
from distcache.megatron.sampling import Cyclic, FullValidation, Order, Sequential, Sharded
from distcache.megatron.training_options import Training, require_counts

MAX_STEPS = 1 << 28
Kind = Literal["single", "cyclic", "sharded", "full"]


class Sampling(msgspec.Struct, frozen=True):
    """How a run deals samples to its ranks."""

    kind: Kind = "single"
    # none if they are not known: then neither micro batches nor ranks are
    micro_batch_size: int | None = None
    data_parallel_size: int | None = None

    @classmethod
    def of_run(cls, options: RunOptions, split: str) -> Sampling:
        """Return how a run of these options deals a split.

        Raises
        ------
        ConfigError
            If its samples come from elsewhere, or a number is not possible.
        """
        training = options.training
        require_counts(training)
        if options.dataloader_type not in ("single", "cyclic"):
            raise ConfigError(
                f"--dataloader-type {options.dataloader_type}: its samples are not those of a cache"
            )
        kind: Kind = "single"
        if split == "valid" and training.full_validation:
            kind = "full"
        elif options.dataloader_type == "cyclic":
            kind = "sharded" if options.data_sharding else "cyclic"
        micro = 1 if kind == "full" else training.micro_batch_size
        return cls(kind, micro, training.data_parallel_size)

    def order(self, total: int) -> Order:
        """Return the order of a split of so many samples.

        Raises
        ------
        ConfigError
            If it depends on the ranks, which are not known, or the samples do not fill a step.
        """
        if self.kind == "single":
            return Sequential(total)
        if self.micro_batch_size is None or self.data_parallel_size is None:
            raise ConfigError(
                f"the order {self.kind} depends on them: give --micro-batch-size and "
                "--data-parallel-size"
            )
        micro, ranks = self.micro_batch_size, self.data_parallel_size
        if total < micro * ranks:
            raise ConfigError(f"{total} samples do not fill a step of {micro * ranks}")
        if self.kind == "full":
            return FullValidation(total, ranks)
        if self.kind == "sharded":
            return Sharded(total, micro, ranks)
        return Cyclic(total - total % (micro * ranks), total - total % micro)

    def partial_steps(self, steps: Steps) -> int:
        """Return how many steps are no whole micro batches of all ranks; 0 if it is not known."""
        if self.micro_batch_size is None or self.data_parallel_size is None:
            return 0
        unit = self.micro_batch_size * self.data_parallel_size
        return int(np.count_nonzero((steps.ends - steps.begins) % unit))

    def ranks_of(
        self, within: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]] | None:
        """Return micro batch, rank and slot of places within their step; None if not known."""
        if self.micro_batch_size is None or self.data_parallel_size is None:
            return None
        micro_batches, rest = np.divmod(within, self.micro_batch_size * self.data_parallel_size)
        if self.kind in ("cyclic", "full"):
            slots, ranks = np.divmod(rest, self.data_parallel_size)
        else:
            ranks, slots = np.divmod(rest, self.micro_batch_size)
        return micro_batches, ranks, slots


@dataclass(frozen=True, eq=False)
class Steps:
    """Steps of a run, each with the places that it takes.

    Attributes
    ----------
    numbers : ndarray of int64, shape (steps,)
        Megatron's number of each iteration, from 1; of validation, that after which it is; negative
        for samples whose iteration nobody knows.
    begins, ends : ndarray of int64, shape (steps,)
        Range of places.
    skipped : ndarray of bool, shape (steps,)
        Whether training consumed the samples without learning of them: ``--iterations-to-skip``.
    rolled_back : ndarray of bool, shape (steps,)
        Whether a later job began again before it.
    jobs : ndarray of int32, shape (steps,)
        Job of each step: its number in the logs, from 0; negative where it is not known.
    """

    numbers: NDArray[np.int64]
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    skipped: NDArray[np.bool_]
    rolled_back: NDArray[np.bool_]
    jobs: NDArray[np.int32]

    @classmethod
    def of(
        cls,
        numbers: NDArray[np.int64],
        ends: NDArray[np.int64],
        sizes: NDArray[np.int64],
        skipped: Sequence[int] = (),
    ) -> Steps:
        """Return steps by the ends of their places and their sizes."""
        count = len(numbers)
        return cls(
            numbers,
            ends - sizes,
            ends,
            np.isin(numbers, skipped),
            np.zeros(count, bool),
            np.zeros(count, np.int32),
        )

    @classmethod
    def joined(cls, parts: Sequence[Steps]) -> Steps:
        """Return the steps of all parts, in their order."""
        columns = ([getattr(part, field.name) for part in parts] for field in fields(cls))
        return cls(*map(np.concatenate, columns))

    def take(self, chosen: NDArray[Any]) -> Steps:
        """Return some of the steps."""
        return Steps(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def between(self, first: int, last: int) -> Steps:
        """Return the steps from one number up to another, which is not among them."""
        return self.take((self.numbers >= first) & (self.numbers < last))

    def within(self, begin_at: int, total: int | None) -> Steps:
        """Return the steps that take places of a cache, whose first one is a later one of the run.

        Parameters
        ----------
        begin_at : int
            Samples of the run before the first of the cache.
        total : int or None
            Places that the cache has; None if they repeat.

        Raises
        ------
        ConfigError
            If a step has samples before the first of the cache and samples of it.
        """
        across = np.flatnonzero((self.begins < begin_at) & (self.ends > begin_at))
        if len(across):
            begin, end = int(self.begins[across[0]]), int(self.ends[across[0]])
            raise ConfigError(
                f"--begin-at {begin_at}: is within step {self.numbers[across[0]]} of the run, of "
                f"samples {begin} to {end - 1}: give the first sample of a step"
            )
        shifted = replace(self, begins=self.begins - begin_at, ends=self.ends - begin_at)
        inside = shifted.begins >= 0
        return shifted.take(inside if total is None else inside & (shifted.ends <= total))

    def clipped(self, begin_at: int, total: int | None) -> Steps:
        """Return what steps take of places of a cache; arguments as of `within`."""
        begins = np.maximum(self.begins - begin_at, 0)
        ends = self.ends - begin_at if total is None else np.minimum(self.ends - begin_at, total)
        return replace(self, begins=begins, ends=ends).take(begins < ends)


def training_steps(training: Training, count: int, skipped: Sequence[int] = ()) -> Steps:
    """Return the first steps of a run, by the options of its batches.

    Raises
    ------
    ConfigError
        If an option is missing, or Megatron would refuse it.
    """
    if count > MAX_STEPS:
        raise ConfigError(f"{count:,} steps are more than the {MAX_STEPS:,} that are counted")
    sizes = batch_sizes(training, count)
    numbers = np.arange(1, count + 1, dtype=np.int64)
    return Steps.of(numbers, np.cumsum(sizes), sizes, skipped)


def steps_within(options: RunOptions, places: int) -> Steps:
    """Return the steps of a run that its options say the length of, or those of so many places.

    Raises
    ------
    ConfigError
        If an option is missing, or Megatron would refuse it.
    """
    training, skipped = options.training, options.skipped()
    if training.train_iters:
        return training_steps(training, training.train_iters, skipped)
    limit = training.train_samples or places
    count = 1024
    while (steps := training_steps(training, count, skipped)).ends[-1] <= limit:
        count *= 4
    return steps.take(steps.ends <= limit)


def evaluations_within(
    training: Training, total: int, sampling: Sampling, last: int | None
) -> Steps:
    """Return the evaluations of a run before a step, or those of which the split has samples.

    Raises
    ------
    ConfigError
        If an option is missing.
    """
    one = evaluation_steps(training, 1, total, sampling)
    count = max(total // int(one.ends[0]), 1)
    if last is not None and training.eval_interval:
        count = max(last // training.eval_interval + 1, 1)
    return evaluation_steps(training, count, total, sampling)


def evaluation_steps(training: Training, count: int, total: int, sampling: Sampling) -> Steps:
    """Return the first evaluations of a run, each of which has all its micro batches.

    Parameters
    ----------
    training : Training
        Options of validation.
    count : int
        Number of evaluations.
    total : int
        Samples of the split, which an evaluation takes with full validation.
    sampling : Sampling
        Rule that assigns samples to ranks.

    Raises
    ------
    ConfigError
        If an option is missing.
    """
    if training.eval_interval is None or training.eval_interval < 1:
        raise ConfigError("--eval-interval: missing: the steps after which there is validation")
    if sampling.kind == "full":
        size = FullValidation(total, sampling.data_parallel_size or 1).epoch
    else:
        batch = training.eval_global_batch_size or global_batch_size(training)
        size = batch * (training.eval_iters or 0)
    if size < 1:
        raise ConfigError(f"--eval-iters: {training.eval_iters or 0}: there is no validation")
    first = (training.start_eval_at_iter or 0) // training.eval_interval
    numbers = np.arange(first + 1, first + count + 1, dtype=np.int64) * training.eval_interval
    ends = np.arange(1, count + 1, dtype=np.int64) * size
    return Steps.of(numbers, ends, np.full(count, size, np.int64))
