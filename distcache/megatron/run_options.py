"""The options of a run that say which samples its steps take, of a command or of a log."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec

from distcache.errors import ConfigError
from distcache.megatron.command_line import parse
from distcache.megatron.training_log import LoggedJob, logged_value
from distcache.megatron.training_options import Training
from distcache.storage.threads import decodable

SEQUENCE_LENGTH_OPTIONS: Final = ("--seq-length", "--encoder-seq-length")


@decodable
class RunOptions(msgspec.Struct, frozen=True):
    """Options of batches, of validation and of the order, as Megatron names them."""

    training: Training
    dataloader_type: str = "single"
    data_sharding: bool = True  # of a cyclic order
    iterations_to_skip: list[int] = []


def _run_of(values: dict[str, Any], where: str) -> RunOptions:
    """Make the options of plain values; those that are None have their defaults."""
    known = {name: value for name, value in values.items() if value is not None}
    try:
        training = msgspec.convert({"seq_length": 1} | known, Training, strict=False)
        return msgspec.convert(known | {"training": training}, RunOptions)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: options of training are not read: {error}") from error


def run_of_command(
    words: Sequence[str], sequence_length: int, near: Collection[str] = ()
) -> RunOptions:
    """Return the options of a training command, or of some words of one.

    Parameters
    ----------
    words : sequence of str
        Words as `distcache.megatron.command_line.parse` takes them.
    sequence_length : int
        Tokens of a sample, if the words do not say it.
    near : collection of str
        Further options of which a misspelt one is an error: those of the command that asks.

    Raises
    ------
    ConfigError
        If an option is not known, or its value is not possible.
    """
    says = any(
        word.partition("=")[0] in SEQUENCE_LENGTH_OPTIONS or word[:1] == "@" for word in words
    )
    more = [] if says else ["--seq-length", str(sequence_length)]
    return _run_of(vars(parse([*words, *more], near=near)), "the command")


def run_of_log(job: LoggedJob) -> RunOptions:
    """Return the options that a log has; those that it lacks have their defaults.

    Raises
    ------
    ConfigError
        If a value is not possible.
    """
    names = [
        field.name for kind in (Training, RunOptions) for field in msgspec.structs.fields(kind)
    ]
    values = {name: logged_value(job, name) for name in names if name in job.arguments}
    if values.get("rampup_batch_size"):  # what asks for it, compares it with the samples
        values["megatron"] = "0.17"
    transitions = values.get("phase_transition_iterations")
    if isinstance(transitions, list):
        values["phase_transition_iterations"] = ",".join(map(str, transitions))
    return _run_of(values, job.path)
