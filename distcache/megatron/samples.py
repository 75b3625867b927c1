"""How many samples Megatron's training asks for, of each split.

Read from ``megatron/training/training.py`` of megatron-core 0.17.1, 0.18.2 and 0.19.2
(`update_train_iters`, `get_train_valid_test_num_samples`), from its
``num_microbatches_calculator.py``, and from ``megatron/bridge/data/loaders.py`` of Megatron-Bridge.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from distcache.errors import ConfigError
from distcache.megatron.tokenizers import Release
from distcache.plan.config import Samples

Arithmetic = Literal["megatron", "bridge"]

FACTORS: Final = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
DEFAULT_INTERVAL: Final = 1000
NOT_OF_BRIDGE: Final = (
    "full_validation",
    "phase_transition_iterations",
    "start_eval_at_iter",
    "step_batch_size_schedule",
)
POSITIVE: Final = ("seq_length", "micro_batch_size", "data_parallel_size", "eval_global_batch_size")
NOT_NEGATIVE: Final = (
    "train_samples",
    "train_iters",
    "eval_iters",
    "start_eval_at_iter",
    "iteration",
)
LONGEST_RAMP: Final = 100_000_000  # batches


class Training(msgspec.Struct, frozen=True, kw_only=True):
    """Megatron's options that decide how much is trained, by their names on its command line."""

    seq_length: int  # tokens of a sample
    # one of them
    train_samples: int | None = None
    train_iters: int | None = None
    # Batch sizes. Without a global batch size, it is the product of the other two; the last is no
    # option of Megatron, which divides the ranks by those that share a model.
    micro_batch_size: int | None = None
    global_batch_size: int | None = None
    data_parallel_size: int | None = None
    # First size, increment, and samples. Ignored since 0.18.
    rampup_batch_size: tuple[int, int, int] | None = None
    # tokens and batch sizes, as in ``0:768 250B:1536``; since 0.18
    step_batch_size_schedule: str | None = None
    # Options of validation; the last two since 0.18. The first is 1,000 by default in 0.16, and has
    # no default since then.
    eval_interval: int | None = None
    eval_iters: int | None = 100
    eval_global_batch_size: int | None = None
    start_eval_at_iter: int | None = None
    # the last is Megatron-Bridge's
    skip_train: bool = False
    full_validation: bool = False
    eval_at_step_zero: bool = False
    phase_transition_iterations: str | None = None  # iterations, separated by commas: ``1000,5000``
    iteration: int = 0  # the one that training starts or resumes with, which says the phase
    megatron: Release | None = None  # release of Megatron-Core
    arithmetic: Arithmetic = "megatron"  # "megatron" or "bridge"


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
    _require_counts(training)
    if not training.train_samples and not training.train_iters:
        raise ConfigError("give --train-samples, or --train-iters and --global-batch-size")
    if training.train_samples and training.train_iters and not training.skip_train:
        raise ConfigError("--train-samples and --train-iters cannot be combined")
    foreign = [f"--{name.replace('_', '-')}" for name in NOT_OF_BRIDGE if getattr(training, name)]
    if foreign and training.arithmetic == "bridge":
        raise ConfigError(f"{', '.join(foreign)}: Megatron-Bridge has no such option")
    batch = _global_batch_size(training)
    evaluated = training.eval_global_batch_size or batch
    train = training.train_samples or (training.train_iters or 0) * batch
    iterations = training.eval_iters or 0
    if training.phase_transition_iterations:
        train = _samples_of_phase(training, batch)
    return Samples(
        train=train,
        valid=None
        if training.full_validation
        else _passes(training, batch) * iterations * evaluated,
        test=iterations * evaluated,
    )


def _require_counts(training: Training) -> None:
    """Refuse numbers that count nothing."""
    for name in POSITIVE:
        if (value := getattr(training, name)) is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')}: {value}: must be positive")
    for name in NOT_NEGATIVE:
        if (value := getattr(training, name)) is not None and value < 0:
            raise ConfigError(f"--{name.replace('_', '-')}: {value}: must not be negative")


def _global_batch_size(training: Training) -> int:
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
    return batch


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
        steps = _steps(training)
        iterations = consumed = 0
        ends = [begin for begin, _ in steps[1:]] + [total]
        for (_, size), end in zip(steps, ends, strict=True):
            batches = max(0, -(-(min(end, total) - consumed) // size))
            iterations += batches
            consumed += batches * size
        return iterations
    if training.rampup_batch_size is None:
        return total // batch
    if training.megatron is None:
        raise ConfigError(
            "--rampup-batch-size: say which release counts, with --megatron RELEASE; since 0.18 it "
            "changes nothing"
        )
    return total // batch if training.megatron >= "0.18" else _ramped(training, batch, total)


def _steps(training: Training) -> list[tuple[int, int]]:
    """Return from which sample on each batch size holds."""
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
    if min(size for _, size in steps) < 1:
        raise ConfigError(f"--step-batch-size-schedule: {text!r}: a batch size is below 1")
    return steps


def _number(text: str) -> int:
    text = text.strip().upper()
    factor = FACTORS.get(text[-1:], 1)
    return int(float(text if factor == 1 else text[:-1]) * factor)


def _ramped(training: Training, batch: int, total: int) -> int:
    """Count the batches of a ramp, whose sizes grow in steps, and those after it."""
    start, increment, samples = training.rampup_batch_size or (0, 0, 0)
    steps, rest = divmod(batch - start, increment) if increment > 0 else (0, 0)
    if start < 1 or samples < 1 or steps < 1 or rest:
        raise ConfigError(
            f"--rampup-batch-size: {start} {increment} {samples}: expected a first size, an "
            f"increment that leads to {batch}, and samples"
        )
    last = min(samples, total)
    if last // start > LONGEST_RAMP:
        raise ConfigError(f"--rampup-batch-size: more than {LONGEST_RAMP:,} batches")
    consumed = iterations = 0
    while consumed <= last:
        consumed += start + int(consumed / (samples / steps)) * increment
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
