"""Ask the index code of other frameworks which files their training would look for.

Their own functions compute the names; what would build or write is replaced while they are asked.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

import msgspec
import numpy as np
import yaml

from distcache.builder.configuration import complete
from distcache.errors import ConfigError
from distcache.launch.doctor.expected import Expected, ExpectedFile, expected_of, judge
from distcache.launch.doctor.finding import Finding
from distcache.launch.doctor.training import blends_of, quiet
from distcache.megatron.export import Exported, exports_in
from distcache.megatron.frameworks.automodel import SPLIT_NAMES, TARGET
from distcache.megatron.frameworks.known_frameworks import FRAMEWORKS
from distcache.megatron.frameworks.maxtext import EVALUATION, blend_fields
from distcache.megatron.names import FrameworkName, description_of
from distcache.megatron.options import config_from_options
from distcache.plan.config import SPLITS
from distcache.storage.files import read_file

LARGEST: Final = 1 << 24  # bytes of a configuration
SECTION: Final = ("document_index", "sample_index", "shuffle_index")
BLEND: Final = ("dataset_index", "dataset_sample_index")
AUTOMODEL: Final = "nemo_automodel.components.datasets.llm"
TARGETS: Final = (TARGET, TARGET.removesuffix("Config"))  # also that of earlier recipes
MAXTEXT: Final = "maxtext.input_pipeline"


def examine_framework(
    name: FrameworkName, directory: Path, words: Sequence[str]
) -> tuple[list[Finding], list[ExpectedFile]]:
    """Compare what a framework would look for with what a directory has.

    Parameters
    ----------
    name : str
        The framework.
    directory : path
        Directory that ``export --for`` or ``localize --for`` wrote.
    words : sequence of str
        The YAML file of training; by default the settings as they were printed. For MindSpeed-LLM
        the training command.

    Returns
    -------
    findings : list of Finding
        A problem for every section and blend that training would build.
    files : list of ExpectedFile
        All that it looks for; empty if it cannot be asked.

    Raises
    ------
    ConfigError
        If the directory has no export for this framework, or the file cannot be read.
    """
    title = FRAMEWORKS[name].title
    known = {record: e for record, e in exports_in(directory).items() if e.framework == name}
    if not known:
        raise ConfigError(f"{directory}: has no files for {title}; export them with --for {name}")
    if len(known) > 1:
        raise ConfigError(
            f"{directory}: has several exports for {title} ({', '.join(known)}); give each a "
            "directory of its own"
        )
    exported = next(iter(known.values()))
    try:
        with quiet():
            expected, notes = _ASK[name](words, exported, directory)
    except ImportError as error:
        text = f"cannot be imported here ({error}); run this where training runs, in its container"
        return [Finding("problem", title, text)], []
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001  the framework's are of any kind
        return [Finding("problem", title, f"would not start: {type(error).__name__}: {error}")], []
    findings = [Finding("warning", title, note) for note in notes]
    findings += judge(expected, directory)
    return findings, [file for entry in expected for file in entry.files]


Answer = tuple[list[Expected], list[str]]


def _settings_of(words: Sequence[str], exported: Exported) -> dict[str, Any]:
    """Return the fields of the file that the words name, or those that were printed."""
    if len(words) > 1:
        raise ConfigError(f"{' '.join(words[1:])}: expected one YAML file, {words[0]}")
    place = words[0] if words else exported.directory
    try:
        text = read_file(words[0], LARGEST).decode() if words else "\n".join(exported.arguments)
        found = yaml.safe_load(text)
    except Exception as error:  # those of PyYAML's own constructors are of any kind
        raise ConfigError(f"{place}: cannot be read as YAML: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{place}: expected the YAML file of training")
    return found


def _mapping(fields: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a part of a configuration; empty if it is not there."""
    found = fields.get(name) or {}
    if not isinstance(found, dict):
        raise ConfigError(f"{name}: expected fields, not {found!r}")
    return found


@contextlib.contextmanager
def _recorded(
    section: type, blend: type, directory: Path, stem: Callable[[Any], str]
) -> Iterator[list[Expected]]:
    """Make datasets say which files they look for, instead of building or opening them.

    Parameters
    ----------
    section, blend : type
        The framework's `GPTDataset` and `BlendedDataset`.
    directory : path
        Directory of the files.
    stem : callable
        Function from a dataset to the start of the names of its files.
    """
    found: dict[str, Expected] = {}

    def record(dataset: Any, kinds: Sequence[str]) -> Path:
        start = stem(dataset)
        names = (f"{start}-description.txt", *(f"{start}-{kind}.npy" for kind in kinds))
        found[start] = expected_of(start, dataset.unique_description, names, directory)
        return directory / start

    def section_arrays(dataset: Any) -> tuple[Any, ...]:
        path = Path(f"{record(dataset, SECTION)}-sample_index.npy")
        count = dataset.num_samples or 1
        with contextlib.suppress(OSError, ValueError, EOFError):
            count = len(np.load(path, mmap_mode="r", allow_pickle=False)) - 1
        none = np.zeros(1, np.int32)
        return none, np.broadcast_to(none, (count + 1, 2)), none

    def blend_arrays(dataset: Any) -> tuple[Any, ...]:
        record(dataset, BLEND)
        size = int(sum(dataset.weights)) if dataset.size is None else dataset.size
        return (np.broadcast_to(np.zeros(1, np.int64), size),) * 2

    entries: list[Expected] = []
    with (
        mock.patch.object(section, "_build_document_sample_shuffle_indices", section_arrays),
        mock.patch.object(blend, "_build_indices", blend_arrays),
    ):
        yield entries
        entries += found.values()


def _ask_automodel(words: Sequence[str], exported: Exported, directory: Path) -> Answer:
    """Make Automodel's own datasets of a recipe."""
    recipe = _settings_of(words, exported)
    datasets = importlib.import_module(f"{AUTOMODEL}.megatron_dataset")
    gpt = importlib.import_module(f"{AUTOMODEL}.megatron.gpt_dataset")
    blended = importlib.import_module(f"{AUTOMODEL}.megatron.builder").BlendedDataset
    schedule, model = _mapping(recipe, "step_scheduler"), _mapping(recipe, "model")
    notes: list[str] = []
    found: dict[str, Expected] = {}
    for key in ("dataset", "validation_dataset"):
        fields = dict(_mapping(recipe, key))
        if not fields:
            continue
        target = fields.pop("_target_", None)
        if target not in TARGETS:
            notes.append(f"{key}: is of {target}, which reads no files of Megatron; not looked at")
            continue
        place = fields.get("index_mapping_dir")
        if place is None or os.path.realpath(place) != os.path.realpath(exported.directory):
            raise ConfigError(
                f"{key}.index_mapping_dir is {place!r}: the files are in {exported.directory}"
            )
        named = _mapping(fields, "tokenizer") or model
        fields.pop("tokenizer", None)
        name = named.get("pretrained_model_name_or_path")
        if name is None:
            name = _tokenizer_of(directory)
            notes.append(f"{key}: the recipe names no tokenizer; taken as {name!r}")
        with (
            mock.patch.object(datasets, "compile_helper"),
            _recorded(gpt.GPTDataset, blended, directory, _automodel_stem) as entries,
        ):
            datasets.MegatronPretraining(
                **fields,
                tokenizer=SimpleNamespace(name_or_path=name, pad_token_id=0, eos_token_id=0),
                global_batch_size=schedule.get("global_batch_size", 1),
                trainer_max_steps=schedule.get("max_steps"),
                trainer_val_check_interval=schedule.get("val_every_steps", 1000),
            ).build()
        chosen = fields.get("splits_to_build") or list(SPLIT_NAMES.values())
        found |= {
            entry.stem: entry
            for entry in entries
            for split, theirs in SPLIT_NAMES.items()
            if theirs in chosen and entry.stem.endswith(f"-{split}")
        }
    if not found:
        raise ConfigError("the recipe has no dataset of Megatron's files")
    return list(found.values()), notes


def _automodel_stem(dataset: Any) -> str:
    split = getattr(dataset, "index_split", None) or dataset.split
    return f"{dataset.unique_description_hash}-{type(dataset).__name__}-{split.name}"


def _tokenizer_of(directory: Path) -> Any:
    """Return the tokenizer of the descriptions of a directory."""
    for path in sorted(directory.glob("*-GPTDataset-*description.txt")):
        return msgspec.json.decode(read_file(path, LARGEST, follow=False))["tokenizer"]
    raise ConfigError(f"{directory}: has no description of a section")


def _ask_mindspeed(words: Sequence[str], exported: Exported, directory: Path) -> Answer:
    """Make the datasets of MindSpeed-LLM's Megatron-Core by a training command."""
    if not words:
        raise ConfigError("give the training command after the directory and --, or as @FILE")
    gpt = importlib.import_module("megatron.core.datasets.gpt_dataset")
    blended = importlib.import_module("megatron.core.datasets.blended_dataset").BlendedDataset
    builder = importlib.import_module("megatron.core.datasets.blended_megatron_dataset_builder")
    config = complete(config_from_options(words))
    tokenizer = SimpleNamespace(
        unique_identifiers=_tokenizer_of(directory), eod=0, pad=-1, vocab_size=1
    )
    with _recorded(gpt.GPTDataset, blended, directory, _mindspeed_stem) as entries:
        settings = gpt.GPTDatasetConfig(
            random_seed=config.seed,
            sequence_length=config.sequence_length,
            split=config.split,
            path_to_cache=str(directory),
            tokenizer=tokenizer,
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
            create_attention_mask=False,
            **blends_of(config),
        )
        sizes = [config.samples_of(split) for split in SPLITS]
        builder.BlendedMegatronDatasetBuilder(gpt.GPTDataset, sizes, lambda: True, settings).build()
    return entries, ["its tokenizer is not asked; it is taken as the files were written for"]


def _mindspeed_stem(dataset: Any) -> str:
    kind = f"{dataset.unique_description_hash}-{type(dataset).__name__}"
    return f"{kind}-{dataset.split.name}" if hasattr(dataset, "datasets") else kind


def _ask_maxtext(words: Sequence[str], exported: Exported, directory: Path) -> Answer:
    """Run MaxText's own pipeline, up to its datasets, by a configuration."""
    fields = _settings_of(words, exported)
    for name, value in (("dataset_type", "grain"), ("grain_file_type", "mmap_npy")):
        if fields.get(name) != value:
            raise ConfigError(f"{name} is {fields.get(name)!r}: these files are read with {value}")
    source = importlib.import_module(f"{MAXTEXT}._mmap_datasource")
    utils = importlib.import_module(f"{MAXTEXT}._mmap_index_utils")
    blending = importlib.import_module(f"{MAXTEXT}._megatron_blending")
    needed = ("grain_train_files", "max_target_length", "data_shuffle_seed")
    missing = [name for name in needed if fields.get(name) in (None, "", [])]
    if missing:
        raise ConfigError(f"the configuration lacks {', '.join(missing)}")
    found: dict[str, Expected] = {}
    identifiers: dict[str, dict[str, Any]] = {}
    digest_of = utils.compute_index_hash

    def record_digest(**given: Any) -> str:
        digest: str = digest_of(**given)
        given["sequence_length"] = given.pop("seq_length")
        identifiers[digest] = {"class": "MegatronNpyDataSource"} | given
        return digest

    def record_section(npy_dir: str, expected_hash: str | None = None) -> None:
        assert expected_hash is not None
        names = [f"{expected_hash}-{kind}.npy" for kind in SECTION]
        text = description_of(identifiers[expected_hash])[0]
        found[expected_hash] = expected_of(expected_hash, text, names, Path(npy_dir))

    def record_blend(
        self: Any, cache_dir: Any, index_dir: str | None, split: str
    ) -> tuple[Any, Any]:
        none = np.broadcast_to(np.zeros(1, np.int64), self._size)
        stem, there = f"a-BlendedDataset-{split}", False  # it takes any of this split
        with contextlib.suppress(OSError, ValueError, EOFError):
            pair = blending._find_index_pair_in_dir(index_dir or "", split)
            there = all(len(np.load(path, mmap_mode="r")) == self._size for path in pair)
            stem = pair[0].name.rpartition("-")[0] if there else stem
        description = description_of(blend_fields(split, self._size))[0]
        files = tuple(ExpectedFile(f"{stem}-{kind}.npy", there) for kind in BLEND)
        found[stem] = Expected(stem, description, files)
        return none, none

    with (
        mock.patch.object(utils, "compute_index_hash", record_digest),
        mock.patch.object(source, "_discover_npy_indices", record_section),
        mock.patch.object(source, "MegatronNpyDataSource", return_value=[0]),
        mock.patch.object(blending.MegatronBlendedDataSource, "_load_or_build", record_blend),
    ):
        for split, key in (("train", "grain_train_files"), ("valid", "grain_eval_files")):
            if fields.get(key):
                _read_as_maxtext(source, fields, key, split, exported.samples[split])
    note = (
        "the samples of steps and batch sizes are not asked; they are taken as those that the "
        f"cache was built for: {exported.samples['train']} to train"
    )
    return list(found.values()), [note]


def _read_as_maxtext(
    source: Any, fields: dict[str, Any], key: str, split: str, samples: int | None
) -> None:
    """Make MaxText's dataset of one split."""
    ratio = fields.get("mmap_npy_split") or None
    source.get_mmap_npy_dataset(
        fields[key],
        split_sentences=fields.get("mmap_split_sentences", False),
        seq_length=fields["max_target_length"],
        eod_id=fields.get("mmap_eod_id", 0),
        num_epoch=fields.get("num_epoch", 1),
        host_index=0,
        host_count=1,
        num_threads=1,
        prefetch_buffer_size=1,
        blend_cache_dir=None,
        blend_index_dir=fields.get("blend_index_dir") or None,
        blend_split=EVALUATION[split],
        apply_transforms=lambda dataset, *_: dataset,
        num_samples=samples,
        seed=fields["data_shuffle_seed"],
        split=ratio,
        split_index=0 if split == "train" or ratio is None else 1,
    )


_ASK: Final[dict[str, Callable[[Sequence[str], Exported, Path], Answer]]] = {
    "automodel": _ask_automodel,
    "maxtext": _ask_maxtext,
    "mindspeed": _ask_mindspeed,
}
