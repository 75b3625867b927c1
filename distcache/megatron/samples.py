"""How many samples Megatron's training asks for, of each split.

Read from ``megatron/training/training.py`` of megatron-core 0.17.1, 0.18.2 and 0.19.2
(`update_train_iters`, `get_train_valid_test_num_samples`), from its
``num_microbatches_calculator.py``, and from ``megatron/bridge/data/loaders.py`` of Megatron-Bridge.
"""

from __future__ import annotations

from typing import Final

from distcache.errors import ConfigError
from distcache.megatron.batch_sizes import (
    MAX_RAMP_BATCHES,
    batch_size_steps,
    global_batch_size,
    ramp_of,
)
from distcache.megatron.training_options import Training, require_counts
from distcache.plan.config import Samples

DEFAULT_INTERVAL: Final = 1000
NOT_OF_BRIDGE: Final = (
    "full_validation",
    "phase_transition_iterations",
    "start_eval_at_iter",
    "step_batch_size_schedule",
)


def samples_of(training: Training) -> Samples:
    """Return how many samples each split is asked for.

    Parameters
    ----------
    training : Training
        Options of training.

    Returns
    -------
    Samples
        `valid` is None with full validation.

    Raises
    ------
    ConfigError
        If something is missing, or Megatron would refuse it.
    """
    require_counts(training)
    if not training.train_samples and not training.train_iters:
        raise ConfigError(
            "give --train-samples, or --train-iters and --global-batch-size; a configuration says "
            "epochs: samples: {train: 3 epochs}"
        )
    if training.train_samples and training.train_iters and not training.skip_train:
        raise ConfigError("--train-samples and --train-iters cannot be combined")
    foreign = [f"--{name.replace('_', '-')}" for name in NOT_OF_BRIDGE if getattr(training, name)]
    if foreign and training.arithmetic == "bridge":
        raise ConfigError(f"{', '.join(foreign)}: Megatron-Bridge has no such option")
    batch = global_batch_size(training)
    evaluated = training.eval_global_batch_size or batch
    train = training.train_samples or (training.train_iters or 0) * batch
    # Megatron makes one pass of a corpus that is asked for fewer samples than one.
    iterations = max(training.eval_iters or 0, 0)
    if training.phase_transition_iterations:
        train = _samples_of_phase(training, batch)
    return Samples(
        train=train,
        valid=None
        if training.full_validation
        else _passes(training, batch) * iterations * evaluated,
        test=iterations * evaluated,
    )


def _passes(training: Training, batch: int) -> int:
    """Return how often training validates, the last time at its end."""
    if training.arithmetic == "bridge":  # which has no start of evaluation, and skips nothing
        if training.eval_interval is None:
            raise ConfigError(
                "--eval-interval: missing; Megatron-Bridge's versions differ without it"
            )
        iterations = training.train_iters or (training.train_samples or 0) // batch
        scheduled = iterations // training.eval_interval + 1 if training.eval_interval else 0
        return scheduled + training.eval_at_step_zero
    if training.skip_train:
        return 1
    interval = training.eval_interval
    if interval is None and training.megatron in (None, "0.16"):
        interval = DEFAULT_INTERVAL
    if interval is None:
        raise ConfigError("--eval-interval: missing; Megatron-Core has no default since 0.17")
    if interval < 1:
        raise ConfigError(f"--eval-interval: {interval}, expected at least 1")
    passes = _iterations(training, batch) // interval + 1
    if training.start_eval_at_iter is not None:
        passes = max(0, passes - training.start_eval_at_iter // interval)
    return passes


def _iterations(training: Training, batch: int) -> int:
    """Return the iterations of training."""
    if training.train_iters:
        return training.train_iters
    total = training.train_samples or 0
    if training.step_batch_size_schedule:
        steps = batch_size_steps(training)
        iterations = consumed = 0
        ends = [begin for begin, _ in steps[1:]] + [total]
        for (_, size), end in zip(steps, ends, strict=True):
            batches = max(0, -(-(min(end, total) - consumed) // size))
            iterations += batches
            consumed += batches * size
        return iterations
    ramp = ramp_of(training, batch)
    if ramp is None:
        return total // batch
    last = min(ramp.samples, total)
    if last // ramp.start > MAX_RAMP_BATCHES:
        raise ConfigError(f"--rampup-batch-size: more than {MAX_RAMP_BATCHES:,} batches")
    consumed = iterations = 0
    while consumed <= last:
        consumed += ramp.size_at(consumed)
        iterations += 1
    return iterations + max(0, total - consumed) // batch


def _samples_of_phase(training: Training, batch: int) -> int:
    """Return the samples of training between the transitions around its first iteration."""
    if not training.train_samples:
        raise ConfigError("--phase-transition-iterations: needs --train-samples")
    text = training.phase_transition_iterations or ""
    try:
        transitions = [int(word) * batch for word in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"--phase-transition-iterations: {text!r}: {error}") from error
    if min(transitions) < 0:
        raise ConfigError(f"--phase-transition-iterations: {text!r}: must not be negative")
    bounds = [0, *transitions, training.train_samples]
    now = training.iteration * batch
    following = [bound for bound in bounds if bound > now]
    if not following:
        raise ConfigError(f"--iteration: {training.iteration}: training has ended before it")
    return min(following) - max(bound for bound in bounds if bound <= now)
