"""Decode a configuration file strictly, and report every wrong field at once."""

from __future__ import annotations

import collections
import difflib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import msgspec

from distcache.builder.continued import continue_cache
from distcache.errors import ConfigError, NotReady
from distcache.megatron.names import AUTOMODEL, Naming
from distcache.megatron.options import MEGATRON_KEYS, config_from_options, options_from_mapping
from distcache.megatron.tokenizers import checked_tokenizer, releases_in
from distcache.plan.config import (
    BlendEntry,
    BlendPerSplit,
    Config,
    Continue,
    Pack,
    Phase,
    Samples,
    Slurm,
    with_training,
)
from distcache.plan.phases import mean_weights, phase_problems
from distcache.plan.written_blends import as_configured
from distcache.storage.files import read_file, read_text
from distcache.storage.url import address_of, is_url, require_file

# A file with any of these fields is distcache's own.
OWN_KEYS: Final = {"blend", "blend_per_split", "sequence_length", "samples"}
SUFFIXES: Final = (".yaml", ".yml", ".json", ".toml")
NOT_WRITTEN: Final = {"of_command", "continued"}  # fields of a configuration that no file has
FIELDS_OF: Final[dict[str, Any]] = {
    "blend": BlendEntry,
    "blend_per_split": BlendPerSplit,
    "samples": Samples,
    "phases": Phase,
    "continue": Continue,
    "pack": Pack,
    "slurm": Slurm,
}
# Megatron's names of fields that a configuration has under other names.
MEGATRON_SPELLINGS: Final = {
    "seq_length": "sequence_length",
    "data_path": "blend, a list of {path, weight}",
    "data_args_path": "blend, a list of {path, weight}",
    "per_split_data_args_path": "blend_per_split",
    "train_data_path": "blend_per_split.train",
    "valid_data_path": "blend_per_split.valid",
    "test_data_path": "blend_per_split.test",
    "train_samples": "samples.train",
    "train_iters": "samples.train, times the global batch size",
    "eval_iters": "samples.valid and samples.test, in samples",
    "eval_interval": "samples.valid, in samples",
    "global_batch_size": "a factor of samples",
    "tokenizer_description": "tokenizer: {description: FILE}",
    "random_seed": "seed",
}
LARGEST_DESCRIPTION: Final = 1 << 28  # bytes
# Errors of parsers, of PyYAML's constructors, and of nesting that is too deep.
PARSER_ERRORS = (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError)


def load_config(path: str | Path) -> Config:
    """Read a configuration from a YAML, JSON or TOML file.

    Parameters
    ----------
    path : path
        Ends in .yaml, .yml, .json or .toml. Keys are distcache's, or Megatron's options with dashes
        or underscores. Or ``@FILE``, with a training command of Megatron.

    Returns
    -------
    Config
        Configuration, with the tokenizer's identifiers from its description file if one is
        named.

    Raises
    ------
    NotReady
        If there is no such file.
    ConfigError
        With one problem per field that is unknown, missing or wrong.
    """
    if str(path).startswith("@"):
        return complete(config_from_options([str(path)]))
    parsed = read_document(path)
    try:
        return config_from_mapping(parsed)
    except ConfigError as error:
        raise ConfigError(*(f"{path}: {problem}" for problem in error.problems)) from error


def read_document(path: str | Path) -> dict[str, Any]:
    """Read a mapping from a YAML, JSON or TOML file.

    Raises
    ------
    NotReady
        If there is no such file.
    ConfigError
        If it holds something else.
    """
    require_file(path, "the configuration", "give a file")
    path = Path(path)
    try:
        text = read_text(path)
    except FileNotFoundError as error:
        others = [path.with_suffix(suffix) for suffix in SUFFIXES if path.suffix != suffix]
        there = ", ".join(str(other) for other in others if other.is_file())
        more = f"; there is {there}" if there else ""
        raise NotReady(f"{path}: no such configuration file{more}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not text; give a YAML, TOML or JSON file") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    try:
        parsed = _parse(path.suffix, text)
    except PARSER_ERRORS as error:
        said = " ".join(str(error).replace(' in "<unicode string>",', "").split())
        raise ConfigError(f"{path}: {said}") from error
    if not isinstance(parsed, dict):
        raise ConfigError(f"{path}: expected a mapping of fields, found {type(parsed).__name__}")
    return parsed


def _parse(suffix: str, text: str) -> Any:
    if suffix == ".toml":
        import tomllib  # noqa: PLC0415  every import of a rank opens files on a shared filesystem

        return tomllib.loads(text)
    return json.loads(text, object_pairs_hook=_unique) if suffix == ".json" else _parse_yaml(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a mapping; a field that is given twice would silently replace the first."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        counts = collections.Counter(name for name, _ in pairs)
        raise ValueError(f"{counts.most_common(1)[0][0]!r} is given twice")
    return fields


def _parse_yaml(text: str) -> Any:
    import yaml  # noqa: PLC0415

    # libyaml, where PyYAML has it, is ten times faster: a blend may name thousands of corpora.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class UniqueLoader(loader):  # type: ignore[misc, valid-type]  # known at run time
        """Refuses fields that are given twice; those of a merge may be."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            merge = "tag:yaml.org,2002:merge"
            names = [key.value for key, _ in node.value if key.id == "scalar" and key.tag != merge]
            _unique([(name, None) for name in names])
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, UniqueLoader)  # noqa: S506
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def config_from_mapping(fields: Mapping[str, Any]) -> Config:
    """Make a configuration from decoded fields, distcache's own or Megatron's.

    Parameters
    ----------
    fields : mapping
        Fields as they were read from a file.

    Returns
    -------
    Config
        Checked.

    Raises
    ------
    ConfigError
        With one problem per field that is unknown, missing or wrong.
    """
    given = {str(key).replace("-", "_") for key in fields}
    if given & MEGATRON_KEYS and not given & OWN_KEYS:
        return complete(config_from_options(options_from_mapping(fields)))
    return complete(_decode(as_configured(fields)))


def _decode(fields: Mapping[str, Any]) -> Config:
    fields_of = msgspec.structs.fields(Config)
    known = {field.encode_name: field for field in fields_of if field.name not in NOT_WRITTEN}
    problems = [_unknown(f"$.{key}", str(key), known) for key in fields if key not in known]
    problems += [
        f"$.{name}: missing"
        for name, field in known.items()
        if field.required and name not in fields
    ]
    values = {}
    for name in known.keys() & fields.keys():
        try:
            values[known[name].name] = msgspec.convert(fields[name], known[name].type, strict=True)
        except msgspec.ValidationError as error:
            choices = _choices(name, known[name].type, str(error))
            problems.append(_with_path(name, str(error)) + choices)
    problems += _exclusive(fields)
    if problems:
        raise ConfigError(*sorted(problems))
    return Config(**values)


def _choices(name: str, kind: Any, message: str) -> str:
    """Return what a field, or one within it, may be, if it is one of some words."""
    if (within := re.search(r" - at `\$\.(\w+)`", message)) is not None and name in FIELDS_OF:
        fields = {
            field.encode_name: field.type for field in msgspec.structs.fields(FIELDS_OF[name])
        }
        kind = fields.get(within[1])
    plain = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    for part in (plain, *get_args(plain)):
        if get_origin(part) is Literal and ("enum value" in message or "got `" in message):
            return f"; expected one of {', '.join(get_args(part))}"
    return ""


def _unknown(path: str, key: str, known: Iterable[str]) -> str:
    """Return the error for an unknown field, with the nearest known one."""
    bare = key.replace("-", "_")
    if (ours := MEGATRON_SPELLINGS.get(bare)) is not None:
        return f"{path}: unknown field; Megatron's {key} is {ours} here"
    near = difflib.get_close_matches(bare, known, n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    return f"{path}: unknown field; {meant}There are: {', '.join(known)}"


def _exclusive(fields: Mapping[str, Any]) -> list[str]:
    given = {name for name in ("blend", "split", "blend_per_split") if fields.get(name) is not None}
    if not given & {"blend", "blend_per_split"}:
        return ["$.blend: missing; give blend and split, or blend_per_split"]
    if "blend_per_split" in given and len(given) > 1:
        return ["$.blend_per_split: cannot be combined with blend or split"]
    if given == {"blend"}:
        return ['$.split: missing; a blend is cut into splits, as in "99,1,0"']
    return []


def _with_path(name: str, message: str) -> str:
    message = message.replace(" - at `key` in `", " in a key - at `")
    text, _, path = message.partition(" - at `")
    place = f"$.{name}{path.removesuffix('`').removeprefix('$')}"
    if (found := re.fullmatch(r"Object contains unknown field `(.*)`", text)) is not None:
        kind = BlendEntry if "[" in place and name != "phases" else FIELDS_OF[name]
        return _unknown(f"{place}.{found[1]}", found[1], kind.__struct_fields__)
    if "matching regex" in text:
        return f"{place}: expected a number, tokens (300B tokens) or epochs (3 epochs)"
    quoted = re.fullmatch(r"Expected `(int|float).*`, got `str`", text) is not None
    return f"{place}: {text}{'; write numbers without quotes' if quoted else ''}"


def complete(config: Config) -> Config:
    """Check what types cannot express, and determine the tokenizer's identifiers.

    Raises
    ------
    ConfigError
        If a text cannot be a path or stand in a file, if there is no such description, if Megatron
        would refuse the tokenizer's options, or if its identifiers are not JSON.
    """
    texts = [*config.prefixes(), config.split or ""]
    problems = [
        f"{text!r}: contains a NUL byte, or cannot be encoded as UTF-8"
        for text in texts
        if not _is_text(text)
    ]
    problems += _url_problems(config.prefixes())
    if problems:
        raise ConfigError(*problems)
    if config.continue_ is not None:
        config = continue_cache(_as_phase(config), config.continue_)
    config = _with_mean_weights(config, config.phases) if config.phases else config
    tokenizer = config.tokenizer
    if tokenizer is None:
        return config
    if set(tokenizer) == {"description"}:
        tokenizer = tokenizer_from(Path(str(tokenizer["description"])))
    elif "class" not in tokenizer and any(map(_is_megatrons, tokenizer)):
        try:
            tokenizer = checked_tokenizer(tokenizer)
        except ConfigError as error:
            raise ConfigError(f"$.tokenizer: {error}") from error
    try:
        json.dumps(tokenizer, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"$.tokenizer: is not JSON: {error}") from error
    return msgspec.structs.replace(config, tokenizer=tokenizer)


def _as_phase(config: Config) -> Config:
    """Return a configuration with a phase for its weights, or one corpus, and `samples.train`."""
    blend = config.blends().get("train", ())
    samples = config.samples.train if config.samples is not None else 0
    if isinstance(samples, str) or any(entry.epochs is not None for entry in blend):
        raise ConfigError("$.continue: epochs cannot be combined with it; give numbers of samples")
    weights = [entry.weight for entry in blend if entry.weight is not None]
    weights = [1.0] if len(blend) == 1 else weights
    if config.phases or not samples or not weights or len(weights) < len(blend):
        return config
    bare = tuple(msgspec.structs.replace(entry, weight=None) for entry in blend)
    config = msgspec.structs.replace(
        config,
        phases=(Phase(tuple(weights), samples=samples),),
        samples=msgspec.structs.replace(config.samples or Samples(), train=0),
    )
    return with_training(config, bare)


def _with_mean_weights(config: Config, phases: tuple[Phase, ...]) -> Config:
    """Return a configuration of phases with the weights and samples of all of them together.

    Raises
    ------
    ConfigError
        If the phases do not fit the corpora, or weights or samples are given besides.
    """
    blend = config.blends().get("train")
    if blend is None:
        raise ConfigError("$.phases: there is no train split")
    problems = phase_problems(phases, len(blend), config.sequence_length)
    if any(entry.weight is not None or entry.epochs is not None for entry in blend):
        problems.append(
            "$.phases: the corpora have weights or epochs, too; give weights of the phases only"
        )
    if config.samples is not None and config.samples.train != 0:
        problems.append("$.samples.train: the phases say how many; leave it out")
    if problems:
        raise ConfigError(*problems)
    weights = list(phases[0].weights)
    changing = len(phases) > 1 or config.continued is not None
    if changing:
        prefixes = [entry.path for entry in blend]
        weights = mean_weights(phases, config.sequence_length, prefixes)
    total = sum(phase.samples_of(config.sequence_length) or 0 for phase in phases)
    entries = tuple(
        msgspec.structs.replace(entry, weight=weight)
        for entry, weight in zip(blend, weights, strict=True)
    )
    samples = msgspec.structs.replace(config.samples or Samples(), train=total)
    config = msgspec.structs.replace(config, samples=samples, phases=phases if changing else None)
    return with_training(config, entries)


def _is_megatrons(key: str) -> bool:
    """Whether a key of a tokenizer is one of Megatron's options, maybe misspelt."""
    return key == "megatron" or key.startswith("tokenizer_")


def _url_problems(prefixes: Iterable[str]) -> list[str]:
    """Return what is wrong with the prefixes that are URLs."""
    problems: list[str] = []
    for prefix in filter(is_url, prefixes):
        try:
            address_of(prefix)
        except ConfigError as error:
            problems += error.problems
    return problems


def _is_text(text: str) -> bool:
    try:
        return b"\0" not in text.encode("utf-8")
    except UnicodeEncodeError:
        return False


def tokenizer_from(path: Path) -> dict[str, Any]:
    """Read a tokenizer's description, or Megatron's options of it.

    Parameters
    ----------
    path : path
        A description of a section or a blend that Megatron wrote; or a YAML or JSON file with
        ``tokenizer_type`` and further options.

    Returns
    -------
    dict
        Fields for `distcache.megatron.tokenizers.identifiers_of`.

    Raises
    ------
    ConfigError
        If the file is neither.
    """
    try:
        text = read_file(path, LARGEST_DESCRIPTION).decode("utf-8")
        described = _parse(".yaml" if path.suffix in (".yaml", ".yml") else ".json", text)
        if "tokenizer_type" in described:
            return checked_tokenizer(described)
        # A blend's description holds its sections'; every one of them names the tokenizer.
        section = described["datasets"][0] if "datasets" in described else described
        return dict(section["tokenizer"])
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    except (OSError, *PARSER_ERRORS) as error:
        raise ConfigError(
            f"tokenizer: {str(path)!r} is neither a description.txt that Megatron wrote, nor a "
            f"file of its tokenizer's options: {error}"
        ) from error


def naming_from(
    tokenizer: Path | None,
    releases: str | None,
    *,
    fim_data: bool | None,
) -> Naming:
    """Return what decides the names of files, as a command's options say it.

    Parameters
    ----------
    tokenizer : path or None
        Description file for `tokenizer_from`.
    releases : str or None
        Releases, separated by commas: ``0.18,0.19``; or "automodel".
    fim_data : bool or None
        Whether training is given ``--fim-data``; None if nothing is said.

    Raises
    ------
    ConfigError
        If a release is not known, or the file has no tokenizer; or ``--fim-data`` for Automodel.
    """
    described = None if tokenizer is None else tokenizer_from(tokenizer)
    if releases == AUTOMODEL:
        if fim_data is not None:
            raise ConfigError("--fim-data is Megatron-Core's, and not of NeMo Automodel")
        return Naming(described, automodel=True)
    return Naming(described, releases_in(releases or ""), fim_data)
