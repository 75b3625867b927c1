"""NeMo Automodel: Megatron's arrays and descriptions, with its own form of the tokenizer.

By ``nemo_automodel/components/datasets/llm/megatron/{gpt_dataset,builder}.py`` and
``megatron_dataset.py`` of nemo-automodel 0.7.0. The tokenizer is the text of its
``name_or_path``, before the seed, and once more at the end of a blend's description.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from distcache.cache.contents import Contents
from distcache.errors import ConfigError
from distcache.megatron.arguments import Arguments, blend_words
from distcache.megatron.frameworks.framework import (
    AS_YAML,
    ExportPlace,
    Framework,
    Rename,
    blends_of_one,
    samples_asked,
    unsupported_options,
    yaml_lines,
)
from distcache.megatron.names import (
    Identifiers,
    NamedArrays,
    Naming,
    named_arrays,
    tokenizer_for,
)

TITLE: Final = "NeMo Automodel 0.7"
TARGET: Final = "nemo_automodel.components.datasets.llm.megatron_dataset.MegatronPretrainingConfig"
SPLIT_NAMES: Final = {"train": "train", "valid": "validation", "test": "test"}


def tokenizer_name(cache: Contents, naming: Naming) -> str:
    """Return the name or path by which Automodel loads the tokenizer.

    Raises
    ------
    ConfigError
        If it is not known.
    """
    tokenizer = tokenizer_for(cache, naming)
    name = tokenizer.get("tokenizer_model") or tokenizer.get("tokenizer_path")
    if not isinstance(name, str):
        raise ConfigError(
            f"{cache.path}: {TITLE} names its files by the tokenizer's name_or_path; give "
            "--tokenizer FILE, a YAML file with tokenizer_type: HuggingFaceTokenizer and "
            "tokenizer_model: NAME, exactly as the recipe has it"
        )
    return name


def _files(cache: Contents, rename: Rename, naming: Naming) -> Iterator[NamedArrays]:
    name = tokenizer_name(cache, naming)

    def complete(found: Identifiers) -> Identifiers:
        if "datasets" in found:
            return found | {"tokenizer": name}
        first = ("class", "dataset_path", "num_samples", "index_split")
        return {key: found[key] for key in first} | {"tokenizer": name} | found

    return named_arrays(cache, rename, complete)


def _settings(cache: Contents, place: ExportPlace, rename: Rename, naming: Naming) -> Arguments:
    blend = Path(f"{place.stem}-blend.json")
    samples = samples_asked(cache)
    dataset: dict[str, Any] = {
        "_target_": TARGET,
        "paths": str(blend),
        "seq_length": cache.identity["sequence_length"],
        "seed": cache.identity["seed"],
        "index_mapping_dir": str(place.directory),
        "num_train_samples": samples["train"],
        "num_val_samples": samples["valid"],
        "num_test_samples": samples["test"],
    }
    if cache.identity["blend"] is None:
        paths: Any = {
            SPLIT_NAMES[split]: words
            for split in cache.naming["blends"]
            if (words := blend_words(cache, split, rename)) is not None
        }
    else:
        paths = blend_words(cache, "train", rename)
        dataset["split"] = cache.identity["split"]
    splits = {"dataset": "train", "validation_dataset": "valid"}
    document = {
        key: dataset | {"splits_to_build": SPLIT_NAMES[split]}
        for key, split in splits.items()
        if split in cache.splits
    }
    warnings = (
        f"the recipe's tokenizer must be {tokenizer_name(cache, naming)!r} under exactly this name",
        "Automodel compiles helpers on every training node before it reads the files: a compiler "
        "must be there",
    )
    files = {blend: json.dumps(paths, indent=1) + "\n"}
    return Arguments(yaml_lines(document), files, warnings)


def _refusals(cache: Contents, rename: Rename, here: Sequence[str]) -> Iterator[str]:
    yield from unsupported_options(cache, TITLE)
    samples = cache.identity["samples"]
    if samples["train"] is not None and "valid" in cache.splits and samples["valid"] is None:
        yield (
            "validates on one epoch (samples.valid: null), and trains on so many samples, from "
            f"which {TITLE} would compute those of validation"
        )
    for split in blends_of_one(cache):
        yield (
            f"has a blend of one corpus ({split}), whose weight {TITLE} leaves out; build the "
            "cache of a corpus without a weight"
        )


AUTOMODEL = Framework(
    title=TITLE, files=_files, settings=_settings, refusals=_refusals, joint=AS_YAML
)
