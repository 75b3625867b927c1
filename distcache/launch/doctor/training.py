"""Ask the Megatron of this environment which files its training would look for.

It makes its own tokenizer, configuration and datasets, of the samples and blends that distcache
reads from a training command, and computes the names of the files by itself: with
`defer_npy_index_mmap` its datasets open none of them and build nothing until a sample is asked for.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from distcache.builder.configuration import complete
from distcache.cache.deal import Deal
from distcache.errors import OptionWarning
from distcache.launch.doctor.machine import Finding
from distcache.megatron.command_line import megatron_words
from distcache.megatron.dealt_export import deal_problems
from distcache.megatron.export import export_in
from distcache.megatron.options import config_from_options
from distcache.megatron.run_options import run_of_command
from distcache.megatron.tokenizers import RELEASES, MegatronTokenizer, Release
from distcache.plan.config import SPLITS, Config
from distcache.storage.files import read_file

MAX_FIELDS: Final = 3  # that differ, in a message
MAX_DESCRIPTION_BYTES: Final = 1 << 28  # bytes of a description
UNSAID: Final = "(nothing)"


class ExpectedFile(msgspec.Struct, frozen=True):
    """A file that training looks for."""

    name: str  # name of the file in the directory
    there: bool  # whether it exists


class Expected(msgspec.Struct, frozen=True):
    """The files of one section or blend, and what their names are the digest of."""

    stem: str
    description: str
    files: tuple[ExpectedFile, ...]


def expected_of(stem: str, description: str, names: Sequence[str], directory: Path) -> Expected:
    """Return the files of a section or blend, and whether a directory has them."""
    files = tuple(ExpectedFile(name, _is_whole(directory / name)) for name in names)
    return Expected(stem, description, files)


def _is_whole(path: Path) -> bool:
    """Return whether a file is there, and as long as its header says."""
    if path.suffix != ".npy" or not path.is_file():
        return path.is_file()
    try:
        np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return False
    return True


def judge(expected: Sequence[Expected], directory: Path) -> Iterator[Finding]:
    """Yield one finding if all is there, else one for each reason why something is not."""
    files = sum(len(entry.files) for entry in expected)
    reasons: dict[str, list[Expected]] = {}
    known: dict[str, list[dict[str, Any]]] = {}
    for entry in expected:
        there = sum(file.there for file in entry.files)
        if there == len(entry.files):
            continue
        reason = f"{len(entry.files) - there} of its files are missing or cut short; export again"
        if not there:
            kind = _kind_of(entry.stem)
            known.setdefault(kind, list(_descriptions(directory, kind)))
            reason = _difference(entry, known[kind])
        reasons.setdefault(reason, []).append(entry)
    if not reasons:
        text = f"{directory}: training finds all {files} files, and builds nothing"
        yield Finding("ok", "files", text)
    for reason, entries in reasons.items():
        more = f" (and {len(entries) - 1} more like it)" if len(entries) > 1 else ""
        text = f"{entries[0].stem}{more}: training would build it: {reason}"
        yield Finding("problem", "files", text)


def _kind_of(stem: str) -> str:
    """Return class and split of the start of a file's name."""
    return stem.partition("-")[2]


def _descriptions(directory: Path, kind: str) -> Iterator[dict[str, Any]]:
    """Yield the descriptions that a directory has of a class and a split, as flat documents."""
    for path in sorted(directory.glob("*-description.txt")):
        if _kind_of(path.name.removesuffix("-description.txt")) != kind:
            continue
        with contextlib.suppress(OSError, ValueError, RecursionError):
            yield _flat(json.loads(read_file(path, MAX_DESCRIPTION_BYTES, follow=False)))


def _difference(entry: Expected, known: Sequence[dict[str, Any]]) -> str:
    """Return in which fields the most similar description differs."""
    wanted = _flat(json.loads(entry.description))
    best: dict[str, tuple[Any, Any]] | None = None
    for found in known:
        differing = {
            name: (wanted.get(name, UNSAID), found.get(name, UNSAID))
            for name in sorted(wanted.keys() | found.keys())
            if wanted.get(name, UNSAID) != found.get(name, UNSAID)
        }
        if best is None or len(differing) < len(best):
            best = differing
    if best is None:
        return f"there is no description of a {_kind_of(entry.stem)}"
    if not best:
        return "its files are missing or cut short, and its description fits; export again"
    shown = [
        f"{name} is {theirs!r} in training, {ours!r} here"
        for name, (theirs, ours) in list(best.items())[:MAX_FIELDS]
    ]
    more = len(best) - len(shown)
    return "; ".join([*shown, *([f"and {more} more fields"] if more else [])])


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Return the leaves of a document by their paths."""
    if isinstance(value, dict):
        parts = [(f"{name}.{key}" if name else str(key), part) for key, part in value.items()]
    elif isinstance(value, list):
        parts = [(f"{name}[{number}]", part) for number, part in enumerate(value)]
    else:
        return {name: value}
    return {path: leaf for key, part in parts for path, leaf in _flat(part, key).items()}


# Options of which packed samples need one, and one that they do not bear.
MASKING: Final = ("--eod-mask-loss", "--reset-position-ids", "--reset-attention-mask")
DEFERRING: Final = "--dataloader-defer-npy-index-mmap"


def examine_training(
    words: Sequence[str], directory: Path
) -> tuple[list[Finding], list[ExpectedFile]]:
    """Compare what training would look for with what a directory has.

    Parameters
    ----------
    words : sequence of str
        The training command, as for `distcache.megatron.command_line.parse`.
    directory : path
        Directory for ``--data-cache-path``: an exported one, or that of a localized cache.

    Returns
    -------
    findings : list of Finding
        A problem for every section and blend that Megatron would build.
    files : list of ExpectedFile
        All that it looks for; empty if it cannot be asked.

    Raises
    ------
    ConfigError
        If the command cannot be read.
    """
    findings: list[Finding] = []
    # The interpreter that runs a script imports from its directory first.
    script = next((Path(word) for word in words if word.endswith(".py")), None)
    if script is not None and script.is_file():
        sys.path.insert(0, str(script.absolute().parent))
    try:
        with quiet():
            version = importlib.import_module("megatron.core.package_info").__version__
    except Exception as error:  # noqa: BLE001  a broken installation may raise anything
        text = f"cannot be imported here ({error}); run this where training runs, in its container"
        return [Finding("problem", "Megatron", text)], []
    release = _nearest_release(version)
    findings.append(_about_release(version, release))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", OptionWarning)
        config = complete(config_from_options(words, release))
    findings += [Finding("warning", "command", str(entry.message)) for entry in caught]
    try:
        with quiet():
            expected = _ask(words, config, directory, release)
    except Exception as error:  # noqa: BLE001  Megatron's are of any kind
        text = f"would not start: {type(error).__name__}: {error}"
        if "offline" in text.lower():
            text += "; HF_HUB_OFFLINE=0 lets doctor download it"
        return [*findings, Finding("problem", "Megatron", text)], []
    findings += judge(expected, directory)
    findings += _judge_packed(expected, words, directory)
    findings += _judge_deal(expected, words, directory, config.sequence_length)
    return findings, [file for entry in expected for file in entry.files]


def _parser() -> argparse.ArgumentParser:
    """Return the parser of this environment's training, which is imported."""
    arguments = importlib.import_module("megatron.training.arguments")
    parser: argparse.ArgumentParser = arguments.add_megatron_arguments(
        argparse.ArgumentParser(allow_abbrev=False)
    )
    return parser


def _nearest_release(version: str) -> Release:
    """Return the known release that a version is, or comes after."""
    known = [release for release in RELEASES if _numbers(release) <= _numbers(version)[:2]]
    return known[-1] if known else RELEASES[0]


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")[:2] if part.isdecimal()]


def _about_release(version: str, release: Release) -> Finding:
    if f"{version}.".startswith(f"{release}."):
        return Finding("ok", "Megatron", f"Megatron-Core {version}")
    text = f"Megatron-Core {version} is not known: samples are counted as in {release}"
    return Finding("warning", "Megatron", text)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep what Megatron prints and warns of from the output."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Be a process group of one rank, which Megatron's blends ask for, unless this is one."""
    distributed = importlib.import_module("torch").distributed
    if distributed.is_initialized():
        yield
        return
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def _ask(words: Sequence[str], config: Config, directory: Path, release: Release) -> list[Expected]:
    """Return what Megatron's own datasets look for."""
    options = _options(words, config)
    with alone():
        place = "text.utils" if release == "0.16" else "utils"
        module = importlib.import_module(f"megatron.core.tokenizers.{place}.build_tokenizer")
        datasets = _datasets(config, options, directory, module.build_tokenizer(options))
        found: dict[str, Expected] = {}
        for dataset in datasets:
            for entry in _walk(dataset, directory):
                found.setdefault(entry.stem, entry)
    return list(found.values())


def _options(words: Sequence[str], config: Config) -> argparse.Namespace:
    """Return what Megatron's own parser makes of a command, if its training is here."""
    try:
        parser = _parser()
    except ModuleNotFoundError as error:
        if error.name not in ("megatron.training", "megatron.training.arguments"):
            raise
        return _tokenizer_options(config)
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            options: argparse.Namespace = parser.parse_known_args(megatron_words(words))[0]
    except SystemExit as ended:
        lines = errors.getvalue().strip().splitlines() or ["no reason given"]
        raise ValueError(lines[-1]) from ended
    options.rank = 1  # it is silent then
    options.padded_vocab_size = options.padded_vocab_size or 1
    return options


def _tokenizer_options(config: Config) -> argparse.Namespace:
    """Return the options of the tokenizer as Megatron's parser would, which is not here."""
    given = dict(config.tokenizer or {})
    if "tokenizer_type" not in given:
        raise ValueError("give the options of the tokenizer: --tokenizer-type and so on")
    given.pop("megatron", None)
    fields = msgspec.structs.asdict(msgspec.convert(given, MegatronTokenizer))
    special = fields["tokenizer_special_tokens"]
    fields["tokenizer_special_tokens"] = None if special is None else list(special)
    fields["special_tokens"] = fields["tokenizer_special_tokens"]
    fields["metadata_path"] = fields["tokenizer_metadata"]
    return argparse.Namespace(
        **fields,
        rank=1,
        pad_vocab_size=False,
        padded_vocab_size=1,
        make_vocab_size_divisible_by=128,
        tensor_model_parallel_size=1,
    )


def _datasets(
    config: Config, options: argparse.Namespace, directory: Path, tokenizer: Any
) -> list[Any]:
    """Return Megatron's datasets, which have read the indices of corpora and nothing else."""
    gpt = importlib.import_module("megatron.core.datasets.gpt_dataset")
    builder = importlib.import_module("megatron.core.datasets.blended_megatron_dataset_builder")
    kind, settings = gpt.GPTDataset, gpt.GPTDatasetConfig
    more: dict[str, Any] = {}
    if config.fim_data:
        fim = importlib.import_module("megatron.training.datasets.fim_dataset")
        kind, settings = fim.GPTFIMDataset, fim.GPTFIMDatasetConfig
        tokens = {
            name: getattr(options, f"fim_{name}_token")
            for name in ("prefix", "middle", "suffix", "pad", "eod")
        }
        more = {
            "fim_rate": options.fim_rate,
            "fim_spm_rate": options.fim_spm_rate,
            "fim_extra_tokens": tokens,
        }
    arguments = settings(
        random_seed=config.seed,
        sequence_length=config.sequence_length,
        split=config.split,
        multiple_validation_sets=config.multiple_validation_sets,
        full_validation=config.full_validation,
        path_to_cache=str(directory),
        mid_level_dataset_surplus=config.mid_level_dataset_surplus,
        tokenizer=tokenizer,
        defer_npy_index_mmap=True,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        **blends_of(config),
        **more,
    )
    sizes = [config.samples_of(split) for split in SPLITS]
    built = builder.BlendedMegatronDatasetBuilder(kind, sizes, lambda: True, arguments).build()
    flat = (part if isinstance(part, list) else [part] for part in built)
    return [dataset for part in flat for dataset in part if dataset is not None]


def blends_of(config: Config) -> dict[str, Any]:
    """Return the blends of a configuration as Megatron's own has them."""
    blends: dict[str, Any] = {}
    for split, sources in config.blends().items():
        weights = [source.weight for source in sources]
        bare = all(weight is None for weight in weights)
        blends[split] = ([source.path for source in sources], None if bare else weights)
    if config.blend is not None:
        return {"blend": blends["train"]}
    return {"blend_per_split": [blends.get(split) for split in SPLITS]}


def _walk(dataset: Any, directory: Path) -> Iterator[Expected]:
    """Yield what a dataset looks for, after those that it is blended from."""
    for part in getattr(dataset, "datasets", []):
        yield from _walk(part, directory)
    names = [
        Path(value).name
        for name, value in sorted(vars(dataset).items())
        if name.startswith("path_to_") and str(value).endswith("_index.npy")
    ]
    stem = names[0].rpartition("-")[0]
    files = (f"{stem}-description.txt", *names)
    yield expected_of(stem, dataset.unique_description, files, directory)


def _judge_packed(
    expected: Sequence[Expected], words: Sequence[str], directory: Path
) -> Iterator[Finding]:
    """Yield a problem for each option that packed samples need, or do not bear."""
    names = {file.name for entry in expected for file in entry.files}
    exported = export_in(directory)
    if exported is None or not exported.packed or not names.intersection(exported.files):
        return
    if not any(option in words for option in MASKING):
        text = f"{directory}: its rows are packed; training needs one of {', '.join(MASKING)}"
        yield Finding("problem", "packing", text)
    if DEFERRING in words:
        text = f"{directory}: its rows are packed, and {DEFERRING} does not know how many there are"
        yield Finding("problem", "packing", text)


def _judge_deal(
    expected: Sequence[Expected], words: Sequence[str], directory: Path, sequence_length: int
) -> Iterator[Finding]:
    """Yield a problem for each option that changes the dealt steps."""
    names = {file.name for entry in expected for file in entry.files}
    exported = export_in(directory)
    if exported is None or exported.deal is None or not names.intersection(exported.files):
        return
    options = run_of_command(words, sequence_length)
    for problem in deal_problems(Deal.parse(exported.deal), options):
        yield Finding("problem", "deal", f"{directory}: {problem}")
