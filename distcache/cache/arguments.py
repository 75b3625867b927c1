"""The options that make Megatron ask for exactly what a cache holds."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

from distcache.cache.contents import Contents

__all__ = ["SPLITS", "blend_words", "megatron_arguments", "megatron_warnings", "per_split_document"]

SPLITS = ("train", "valid", "test")
DEFAULT_SURPLUS = 0.005


def blend_words(
    cache: Contents, split: str, rename: Callable[[str], str] = str
) -> list[str] | None:
    """Return the blend of a split as Megatron spells it: weights and prefixes in turn.

    Parameters
    ----------
    cache : Cache
        The cache.
    split : str
        "train", "valid" or "test".
    rename : callable
        From a path prefix in the cache to the one that training will be given.

    Returns
    -------
    list of str or None
        None for a split without a blend.
    """
    blend = cache.naming["blends"].get(split)
    if blend is None:
        return None
    words = []
    for source, weight in blend:
        words += [] if weight is None else [repr(float(weight))]
        words.append(rename(cache.prefixes[source]))
    return words


def per_split_document(cache: Contents, rename: Callable[[str], str] = str) -> str:
    """Return the JSON that ``--per-split-data-args-path`` reads."""
    return json.dumps({split: blend_words(cache, split, rename) for split in SPLITS}, indent=4)


def megatron_arguments(
    cache: Contents, directory: Path, per_split_path: Path, rename: Callable[[str], str] = str
) -> list[str]:
    """Return the options that go with an exported directory.

    Parameters
    ----------
    cache : Cache
        The cache.
    directory : Path
        For ``--data-cache-path``.
    per_split_path : Path
        Where `per_split_document` was written; used if each split has a blend of its own.
    rename : callable
        As in `blend_words`.

    Returns
    -------
    list of str
        Each an option with its values, quoted for a shell.
    """
    identity = cache.identity
    options = [["--data-cache-path", str(directory)]]
    if identity["blend"] is not None:
        options.append(["--data-path", *(blend_words(cache, "train", rename) or [])])
        options.append(["--split", identity["split"]])
    else:
        options.append(["--per-split-data-args-path", str(per_split_path)])
    options.append(["--seq-length", str(identity["sequence_length"])])
    options.append(["--seed", str(identity["seed"])])
    if (surplus := identity["mid_level_dataset_surplus"]) != DEFAULT_SURPLUS:
        options.append(["--mid-level-dataset-surplus", repr(surplus)])
    if (train := identity["samples"]["train"]) is not None:
        options.append(["--train-samples", str(train)])
    if identity["samples"]["valid"] is None:
        options.append(["--full-validation"])
    if identity["multiple_validation_sets"]:
        options.append(["--multiple-validation-sets"])
    return [shlex.join(option) for option in options]


def megatron_warnings(cache: Contents) -> list[str]:
    """Return what Megatron must be told in code: it is in no option, and in no file name."""
    partial = "drop_last_partial_validation_sequence"
    defaults = {"add_extra_token": "add_extra_token_to_sequence", partial: partial}
    return [
        f"this cache has {name}: false; its arrays are only right for a GPTDatasetConfig with "
        f"{theirs}=False, which Megatron's names do not tell apart"
        for name, theirs in defaults.items()
        if not cache.identity[name]
    ]
