"""The options of Megatron's training that decide how much is trained, and in what batches."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from distcache.errors import ConfigError
from distcache.megatron.tokenizers import Release
from distcache.storage.threads import decodable

Arithmetic = Literal["megatron", "bridge"]

POSITIVE: Final = ("seq_length", "micro_batch_size", "data_parallel_size", "eval_global_batch_size")
MAX_NUMBER: Final = 1 << 48  # of what an option counts
NOT_NEGATIVE: Final = (
    "train_samples",
    "train_iters",
    "start_eval_at_iter",
    "iteration",
)


@decodable
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
    # whether a batch is rounded down to micro batches of all ranks
    decrease_batch_size_if_needed: bool = False
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


def require_counts(training: Training) -> None:
    """Refuse numbers that count nothing.

    Raises
    ------
    ConfigError
        Naming the option.
    """
    for name in (*POSITIVE, *NOT_NEGATIVE, "eval_iters", "global_batch_size"):
        if (value := getattr(training, name) or 0) > MAX_NUMBER:
            raise ConfigError(f"--{name.replace('_', '-')}: {value}: is more than {MAX_NUMBER:,}")
    for name in POSITIVE:
        if (value := getattr(training, name)) is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')}: {value}: must be positive")
    for name in NOT_NEGATIVE:
        if (value := getattr(training, name)) is not None and value < 0:
            raise ConfigError(f"--{name.replace('_', '-')}: {value}: must not be negative")
