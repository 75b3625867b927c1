"""The options of a run that say which samples its steps take, of a command or of a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from distcache.errors import ConfigError
from distcache.megatron.command_line import named_options, parse
from distcache.megatron.training_log import LoggedJob, logged_value
from distcache.megatron.training_options import Training, require_counts
from distcache.storage.threads import decodable

SEQUENCE_LENGTH_OPTIONS: Final = ("--seq-length", "--encoder-seq-length")
FIRST_COUNTED_FROM_ONE: Final = "0.17"  # release


@decodable
class RunOptions(msgspec.Struct, frozen=True):
    """Options of batches, of validation and of the order, as Megatron names them."""

    training: Training
    dataloader_type: str = "single"
    data_sharding: bool = True  # of a cyclic order
    iterations_to_skip: list[int] = []
    # number of the first iteration in `iterations_to_skip`: 0 up to Megatron 0.16, 1 since 0.17
    # (``training.py`` compares with the iterations that are done, and then with their next)
    skips_count_from: Literal[0, 1] | None = None
    unread: tuple[str, ...] = ()  # options of a log whose values are none

    def skipped(self, count_from: int | None = None) -> list[int]:
        """Return the iterations to skip, counted from 1, if they are given counted from a number.

        The default is the release's number. Without a release, a 0 means counting from 0.
        """
        if count_from is None:
            count_from = self.skips_count_from
        if count_from is None:
            count_from = 0 if 0 in self.iterations_to_skip else 1
        return [number + 1 - count_from for number in self.iterations_to_skip]


def _run_of(values: dict[str, Any], where: str) -> RunOptions:
    """Make the options of plain values; those that are None have their defaults."""
    known = {name: value for name, value in values.items() if value is not None}
    if (release := known.get("megatron")) is not None:
        known["skips_count_from"] = 0 if release < FIRST_COUNTED_FROM_ONE else 1
    try:
        training = msgspec.convert({"seq_length": 1} | known, Training, strict=False)
        return msgspec.convert(known | {"training": training}, RunOptions)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: options of training are not read: {error}") from error


def run_of_command(words: Sequence[str], sequence_length: int) -> RunOptions:
    """Return the options of a training command, or of some words of one.

    Parameters
    ----------
    words : sequence of str
        Words as `distcache.megatron.command_line.parse` takes them.
    sequence_length : int
        Tokens of a sample, if the words do not say it.

    Raises
    ------
    ConfigError
        If an option is not known, or its value is not possible.
    """
    says = any(
        word.partition("=")[0] in SEQUENCE_LENGTH_OPTIONS or word[:1] == "@" for word in words
    )
    more = [] if says else ["--seq-length", str(sequence_length)]
    return _run_of(vars(parse([*words, *more])), "the command")


def options_given(words: Sequence[str]) -> dict[str, Any]:
    """Return the values of the options that words name, for logs that lack them.

    Raises
    ------
    ConfigError
        If the words are not a training command, or an option has a wrong value.
    """
    names = named_options(words)
    more = [] if "seq_length" in names else ["--seq-length", "1"]
    values = vars(parse([*words, *more]))
    return {name: value for name, value in values.items() if name in names}


def run_of_log(job: LoggedJob, given: Mapping[str, Any] | None = None) -> RunOptions:
    """Return the options that a log has; those that it lacks have their defaults.

    Parameters
    ----------
    job : LoggedJob
        The log.
    given : mapping of str to value, or None
        Options that count instead of its own.

    Raises
    ------
    ConfigError
        If a given value is not possible. Values of the log that are none are left out, and named.
    """
    names = [
        field.name for kind in (Training, RunOptions) for field in msgspec.structs.fields(kind)
    ]
    values = {name: logged_value(job, name) for name in names if name in job.arguments}
    if isinstance(values.get("iterations_to_skip"), int):
        values["iterations_to_skip"] = [values["iterations_to_skip"]]
    transitions = values.get("phase_transition_iterations")
    if isinstance(transitions, list):
        values["phase_transition_iterations"] = ",".join(map(str, transitions))
    unread = tuple(
        f"{job.path}: {name}: {job.arguments[name]!r} is no value of this option, and is left out"
        for name in values
        if not _is_possible(name, values[name])
    )
    values = {name: value for name, value in values.items() if _is_possible(name, value)}
    values |= given or {}
    run = _run_of(values, job.path)
    if run.training.rampup_batch_size and run.training.megatron is None:
        # what asks for the ramp compares it with the logged samples
        training = msgspec.structs.replace(run.training, megatron="0.17")
        run = msgspec.structs.replace(run, training=training)
    return msgspec.structs.replace(run, unread=unread)


def _is_possible(name: str, value: Any) -> bool:
    """Return whether a value can be that of an option."""
    try:
        require_counts(_run_of({name: value}, "").training)
    except ConfigError:
        return False
    return True
