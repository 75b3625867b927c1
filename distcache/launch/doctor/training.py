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
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from distcache.builder.configuration import complete
from distcache.errors import OptionWarning
from distcache.launch.doctor.expected import Expected, ExpectedFile, expected_of, judge
from distcache.launch.doctor.finding import Finding
from distcache.megatron.command_line import megatron_words
from distcache.megatron.export import export_in
from distcache.megatron.options import config_from_options
from distcache.megatron.tokenizers import RELEASES, MegatronTokenizer, Release
from distcache.plan.config import SPLITS, Config

# Options of which packed rows need one, and one that they do not bear.
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


def _ask(words: Sequence[str], config: Config, directory: Path, release: Release) -> list[Expected]:
    """Return what Megatron's own datasets look for."""
    torch = importlib.import_module("torch")
    options = _options(words, config)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        if not torch.distributed.is_initialized():  # Megatron's blends ask for it
            store = f"file://{name}/store"
            torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
            stack.callback(torch.distributed.destroy_process_group)
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
    """Yield a problem for each option that packed rows need, or do not bear."""
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
