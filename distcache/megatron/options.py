"""Configurations from Megatron's own options: blends, splits and tokenizers as it spells them.

The option names and the defaults are those of Megatron-LM's ``megatron/training``
(``arguments.py``, ``training.py``, ``utils.py``).
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar, get_args

import msgspec

from distcache.errors import ConfigError, OptionWarning
from distcache.megatron.command_line import DATA_KEYS, ON_BY_DEFAULT, parse
from distcache.megatron.samples import samples_of
from distcache.megatron.tokenizers import MegatronTokenizer, Release, TokenizerType
from distcache.megatron.training_options import Training
from distcache.plan.config import SPLITS, BlendEntry, BlendPerSplit, Config
from distcache.plan.written_blends import require_no_names
from distcache.storage.files import read_text

Fields = TypeVar("Fields", bound=msgspec.Struct)

LEGACY_SPLIT: Final = "969, 30, 1"


# Options whose names distcache's own configuration does not have.
MEGATRON_KEYS: Final = DATA_KEYS - set(Config.__struct_fields__)


def options_from_mapping(fields: Mapping[str, Any]) -> list[str]:
    """Turn Megatron's options of a file into command-line arguments.

    Parameters
    ----------
    fields : mapping
        Option names with dashes or underscores; true means a flag that is set, and false for
        one that is on by default and is not.

    Returns
    -------
    list of str
        Options for `config_from_options`.
    """
    words: list[str] = []
    for key, value in fields.items():
        bare = str(key).replace("-", "_")
        name = "--" + bare.replace("_", "-")
        if bare in ON_BY_DEFAULT:
            words += [f"--no-{name[2:]}"] if value is False else []
        elif value is True:
            words.append(name)
        elif value is not False and value is not None:
            values = value if isinstance(value, list) else [value]
            words += [name, *map(str, values)]
    return words


def config_from_options(
    words: Sequence[str],
    release: Release | None = None,
) -> Config:
    """Make a configuration from a training command.

    Parameters
    ----------
    words : sequence of str
        Megatron's options: ``["--data-path", "0.3", "a", "0.7", "b", ...]``; or as
        `distcache.megatron.command_line.parse` takes them.
    release : str or None
        Release of Megatron-Core; by default the one that the options name.

    Returns
    -------
    Config
        Configuration with the samples that Megatron's training would ask for.

    Raises
    ------
    ConfigError
        For whatever Megatron would refuse.
    NotReady
        If a file of options does not exist.
    """
    options = parse(words)
    options.megatron = release or options.megatron
    common = _common_entries(options)
    per_split = _per_split_entries(options)
    if (common is None) == (per_split is None):
        raise ConfigError(
            "give either --data-path or --data-args-path, or the data of each split "
            "(--train-data-path and so on, or --per-split-data-args-path)"
        )
    fields: dict[str, Any] = {
        "sequence_length": options.seq_length,
        "seed": options.seed,
        "samples": msgspec.to_builtins(samples_of(_fields_of(options, Training))),
        "mid_level_dataset_surplus": options.mid_level_dataset_surplus,
        "blend_arithmetic": options.blend_arithmetic,
        "multiple_validation_sets": options.multiple_validation_sets,
        "full_validation": options.full_validation,
        "mixed_tokenizers": options.mixed_tokenizers,
        "fim_data": options.fim_data,
        "tokenizer": _tokenizer_in(options),
        "of_command": True,
    }
    if common is not None:
        fields["blend"] = msgspec.to_builtins(blend_from_words(common))
        fields["split"] = options.split or LEGACY_SPLIT
    else:
        if options.split is not None:
            raise ConfigError("--split cannot be combined with data for each split")
        fields["blend_per_split"] = msgspec.to_builtins(per_split)
    try:
        config = msgspec.convert(fields, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"Megatron options: {error}") from error
    _require_sizes_of_blends(config, options.eval_iters)
    return config


def _require_sizes_of_blends(config: Config, iterations: int | None) -> None:
    """Refuse a negative number of validation samples, at which Megatron fails to blend corpora."""
    blends = [config.blends().get(split, ()) for split in ("valid", "test")]
    blended = any(len(blend) > 1 or any(e.weight is not None for e in blend) for blend in blends)
    if blended and (iterations or 0) < 0:
        raise ConfigError(
            f"--eval-iters: {iterations}: Megatron cannot blend a negative number of samples; "
            "give --eval-iters 0, with which it trains on the same samples"
        )


def _tokenizer_in(options: argparse.Namespace) -> dict[str, Any] | None:
    """Return the tokenizer of a training command, as a configuration has it; None without one.

    An unknown type gives no tokenizer and a warning: it is a fork's, or only names need it.
    """
    if options.tokenizer_description:
        return {"description": options.tokenizer_description}
    if options.tokenizer_type is None:
        return None
    if options.tokenizer_type not in get_args(TokenizerType):  # no array depends on it
        warnings.warn(
            f"--tokenizer-type {options.tokenizer_type}: its names of files are not known; give a "
            "description.txt to export, as --tokenizer",
            OptionWarning,
            stacklevel=2,
        )
        return None
    release = {} if options.megatron is None else {"megatron": options.megatron}
    found: dict[str, Any] = msgspec.to_builtins(_fields_of(options, MegatronTokenizer))
    return found | release


def _fields_of(options: argparse.Namespace, kind: type[Fields]) -> Fields:
    """Return the options that are fields of a type as one of it."""
    given = {name: getattr(options, name, None) for name in kind.__struct_fields__}
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"Megatron options: {error}") from error


def blend_from_words(words: Sequence[str]) -> tuple[BlendEntry, ...]:
    """Read a blend as Megatron does: weights and prefixes in turn, or prefixes alone.

    An odd number of words are prefixes. An even number are pairs, if the first of each is a
    number; if none is, all are prefixes.

    Raises
    ------
    ConfigError
        If only some of the pairs start with a number.
    """
    require_no_names(words)
    weights = [_number(word) for word in words[::2]]
    if len(words) % 2 == 1 or all(weight is None for weight in weights):
        return tuple(BlendEntry(word.strip()) for word in words)
    if any(weight is None for weight in weights):
        raise ConfigError(f"some prefixes have a weight and some have none: {' '.join(words)}")
    return tuple(
        BlendEntry(path.strip(), weight) for weight, path in zip(weights, words[1::2], strict=True)
    )


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def _common_entries(options: argparse.Namespace) -> list[str] | None:
    if options.data_path is not None and options.data_args_path is not None:
        raise ConfigError("--data-path and --data-args-path cannot be combined")
    if options.data_args_path is not None:
        return _read(options.data_args_path).split()
    words: list[str] | None = options.data_path
    return words


def _per_split_entries(options: argparse.Namespace) -> BlendPerSplit | None:
    named = {split: getattr(options, f"{split}_data_path") for split in SPLITS}
    if options.per_split_data_args_path is not None:
        if any(words is not None for words in named.values()):
            raise ConfigError(
                "--per-split-data-args-path cannot be combined with --train-data-path and so on"
            )
        try:
            parsed = json.loads(_read(options.per_split_data_args_path))
            splits = {split: parsed[split] for split in SPLITS}
            if not all(words is None or isinstance(words, str | list) for words in splits.values()):
                raise TypeError("each must be a list, a string or null")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(
                f"{options.per_split_data_args_path}: expected JSON with train, valid and test: "
                f"{error}"
            ) from error
        named = {
            split: words.split() if isinstance(words, str) else words and list(map(str, words))
            for split, words in splits.items()
        }
    if all(words is None for words in named.values()):
        return None
    blends = {split: blend_from_words(words) for split, words in named.items() if words}
    return BlendPerSplit(**blends)


def _read(path: str) -> str:
    try:
        return read_text(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path!r}: cannot be read: {error}") from error
