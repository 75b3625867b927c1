"""NeMo Automodel: Megatron's arrays and descriptions, with its own form of the tokenizer.

By ``nemo_automodel/components/datasets/llm/megatron/{gpt_dataset,builder}.py`` and
``megatron_dataset.py`` of nemo-automodel 0.7.0. The tokenizer is the text of its
``name_or_path``, before the seed, and once more at the end of a blend's description.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from distcache.cache.contents import Contents
from distcache.errors import ConfigError
from distcache.megatron.arguments import DEFAULT_SURPLUS, Arguments, blend_words
from distcache.megatron.names import Identifiers, NamedArrays, Naming, Rename, named_arrays
from distcache.storage.url import is_url

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
    tokenizer = naming.tokenizer_for(cache)
    name = tokenizer.get("tokenizer_model") or tokenizer.get("tokenizer_path")
    if not isinstance(name, str):
        raise ConfigError(
            f"{cache.path}: {TITLE} names its files by the tokenizer's name_or_path; give "
            "--tokenizer FILE, a YAML file with tokenizer_type: HuggingFaceTokenizer and "
            "tokenizer_model: NAME, exactly as the recipe has it"
        )
    return name


def automodel_files(cache: Contents, rename: Rename, naming: Naming) -> Iterator[NamedArrays]:
    """Yield everything that Automodel would look for, each name once.

    Raises
    ------
    ConfigError
        If the name of the tokenizer is not known.
    """
    name = tokenizer_name(cache, naming)

    def complete(found: Identifiers) -> Identifiers:
        if "datasets" in found:
            return found | {"tokenizer": name}
        first = ("class", "dataset_path", "num_samples", "index_split")
        return {key: found[key] for key in first} | {"tokenizer": name} | found

    return named_arrays(cache, rename, complete)


def recipe_fields(
    cache: Contents, directory: Path, stem: Path, rename: Rename, naming: Naming
) -> Arguments:
    """Return the fields of a recipe that go with an exported directory, as lines of YAML.

    Parameters
    ----------
    cache : Contents
        The cache.
    directory : Path
        Directory of the files.
    stem : Path
        Start of the path of the blend's file.
    rename : callable
        Function from a path prefix in the cache to the one that training will be given.
    naming : Naming
        Naming that has the tokenizer.
    """
    blend, samples = Path(f"{stem}-blend.json"), cache.identity["samples"]
    dataset: dict[str, Any] = {
        "_target_": TARGET,
        "paths": str(blend),
        "seq_length": cache.identity["sequence_length"],
        "seed": cache.identity["seed"],
        "index_mapping_dir": str(directory),
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
    lines = yaml.safe_dump(document, sort_keys=False, width=1 << 20).splitlines()
    return Arguments(tuple(lines), {blend: json.dumps(paths, indent=1) + "\n"}, warnings)


def automodel_refusals(cache: Contents) -> Iterator[str]:
    """Yield the reasons why Automodel would not find the arrays, or would read other samples."""
    identity, samples = cache.identity, cache.identity["samples"]
    for name, is_so in (
        ("fim_data", cache.naming.get("fim_data", False)),
        ("packing", "packing" in identity),
        ("phases", "phases" in identity),
        ("multiple_validation_sets", identity["multiple_validation_sets"]),
        ("add_extra_token: false", not identity["add_extra_token"]),
        (
            "drop_last_partial_validation_sequence: false",
            not identity["drop_last_partial_validation_sequence"],
        ),
        ("blend_arithmetic: fused", identity.get("blend_arithmetic", "separate") != "separate"),
        (
            f"mid_level_dataset_surplus: {identity['mid_level_dataset_surplus']}",
            identity["mid_level_dataset_surplus"] != DEFAULT_SURPLUS,
        ),
    ):
        if is_so:
            yield f"has {name}, which {TITLE} does not know"
    if cache.table("sources")["columns_end"].any():
        yield f"has corpora of rows, which {TITLE} does not read"
    for prefix in filter(is_url, cache.prefixes):
        yield f"has {prefix}, an object, which {TITLE} is not given; copy the corpus to a directory"
    if samples["train"] is not None and "valid" in cache.splits and samples["valid"] is None:
        yield (
            "validates on one epoch (samples.valid: null), and trains on so many samples, from "
            f"which {TITLE} would compute those of validation"
        )
    for row, blend in enumerate(cache.table("blends")):
        if (cache.table("members")["blend"] == row).sum() == 1:
            split = blend["split"].decode("ascii")
            yield (
                f"has a blend of one corpus ({split}), whose weight {TITLE} leaves out; build the "
                "cache of a corpus without a weight"
            )
