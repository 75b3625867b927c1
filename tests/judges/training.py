"""Megatron's training of the release that is on the path: its options and its arithmetic."""

from __future__ import annotations

import argparse
import functools
import warnings
from collections.abc import Sequence
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from megatron.core import num_microbatches_calculator as calculator
    from megatron.training import arguments, global_vars, training


@functools.cache
def parser() -> argparse.ArgumentParser:
    """Return the parser of its command line."""
    return arguments.add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))


def counts() -> dict[str, str]:
    """Return how many values each option takes, as argparse writes it; "1" for one."""
    return {
        name: "1" if action.nargs is None else str(action.nargs)
        for action in parser()._actions
        for name in action.option_strings
        if name.startswith("--")
    }


def parse(words: Sequence[str], data_parallel_size: int) -> argparse.Namespace:
    """Parse a command line, with the defaults that depend on the number of ranks.

    These few of `validate_args`, which needs GPUs, are repeated here.
    """
    options = parser().parse_args(list(words))
    if options.phase_transition_iterations:
        options.phase_transition_iterations = sorted(
            int(word) for word in options.phase_transition_iterations.split(",")
        )
    if options.global_batch_size is None:
        options.global_batch_size = options.micro_batch_size * data_parallel_size
    if hasattr(options, "eval_global_batch_size") and options.eval_global_batch_size is None:
        options.eval_global_batch_size = options.global_batch_size
    options.rank, options.iteration = 0, 0
    options.data_parallel_size = data_parallel_size
    return options


def validate(words: Sequence[str]) -> argparse.Namespace:
    """Parse and validate options as Megatron does at its start, on rank 0 of eight."""
    options = parser().parse_args(list(words))
    options.rank, options.world_size = 0, 8
    found: argparse.Namespace = arguments.validate_args(options)
    return found


def samples_of(options: argparse.Namespace) -> tuple[Any, Any, Any]:
    """Return the samples of each split that its training asks for."""
    schedule: dict[str, Any] = {"rampup_batch_size": options.rampup_batch_size}
    if hasattr(options, "step_batch_size_schedule"):
        schedule["step_batch_size_schedule"] = options.step_batch_size_schedule
        schedule["seq_length"] = options.seq_length
    calculator.unset_num_microbatches_calculator()
    calculator.init_num_microbatches_calculator(
        rank=1,
        global_batch_size=options.global_batch_size,
        micro_batch_size=options.micro_batch_size,
        data_parallel_size=options.data_parallel_size,
        decrease_batch_size_if_needed=False,
        **schedule,
    )
    training.update_train_iters(options)
    global_vars.unset_global_variables()
    global_vars.set_args(options)
    found: tuple[Any, Any, Any] = training.get_train_valid_test_num_samples()
    return found
