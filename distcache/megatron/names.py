"""The names and descriptions by which Megatron-Core finds its index files.

A file name holds the MD5 of a description, which is the JSON, indented by 4, of a dataset's
``unique_identifiers``: ``MegatronDataset`` for a section, ``BlendedDataset`` for a blend. The path
of the corpus is in it, so names are computed for the paths that training will be given.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np

from distcache.cache.contents import ArrayView, Contents
from distcache.errors import ConfigError

__all__ = ["MegatronFile", "megatron_files"]


class MegatronFile(msgspec.Struct, frozen=True):
    """The files of one section or blend.

    Attributes
    ----------
    stem : str
        Start of the names: digest, class and split.
    description : str
        The text of ``<stem>-description.txt``.
    arrays : dict of str to ArrayView
        Each becomes ``<stem>-<name>.npy``.
    """

    stem: str
    description: str
    arrays: dict[str, ArrayView]


def megatron_files(
    cache: Contents,
    rename: Callable[[str], str] = str,
    tokenizer: dict[str, Any] | None = None,
) -> Iterator[MegatronFile]:
    """Yield everything that Megatron would look for, each file once.

    Parameters
    ----------
    cache : Cache
        The cache.
    rename : callable
        From a path prefix in the cache to the one that training will be given.
    tokenizer : dict or None
        Megatron's ``unique_identifiers`` of the tokenizer, in its order; by default the cache's.

    Yields
    ------
    MegatronFile
        Sections, then blends.

    Raises
    ------
    ConfigError
        If neither the cache nor the caller knows the tokenizer.
    """
    tokenizer = tokenizer if tokenizer is not None else cache.naming["tokenizer"]
    if tokenizer is None:
        raise ConfigError(
            f"{cache.path}: does not know the tokenizer, which enters Megatron's file names; give "
            "--tokenizer FILE, a description.txt that Megatron wrote with it"
        )
    prefixes = [rename(prefix) for prefix in cache.prefixes]
    blends: dict[int, list[dict[str, Any]]] = {}
    seen: set[str] = set()
    for member in cache.table("members"):
        identifiers = _section_identifiers(cache, member, prefixes, tokenizer)
        blends.setdefault(int(member["blend"]), []).append(identifiers)
        described = _describe(identifiers, cache.arrays("sections", int(member["section"])))
        if described.stem not in seen:
            seen.add(described.stem)
            yield described
    for row in range(len(cache.table("blends"))):
        identifiers = _blend_identifiers(cache, row, blends[row])
        yield _describe(identifiers, cache.arrays("blends", row))


def _describe(identifiers: dict[str, Any], arrays: dict[str, ArrayView]) -> MegatronFile:
    description = json.dumps(identifiers, indent=4)
    digest = hashlib.md5(description.encode("utf-8"), usedforsecurity=False).hexdigest()
    split = identifiers.get("index_split", identifiers.get("split"))
    return MegatronFile(f"{digest}-{identifiers['class']}-{split}", description, arrays)


def _section_identifiers(
    cache: Contents, member: Any, prefixes: list[str], tokenizer: dict[str, Any]
) -> dict[str, Any]:
    requested = int(member["requested"])
    return {
        "class": "GPTDataset",
        "dataset_path": prefixes[int(member["source"])],
        "num_samples": None if requested < 0 else requested,
        "index_split": member["split"].decode("ascii"),
        "random_seed": cache.identity["seed"],
        "sequence_length": cache.identity["sequence_length"],
        "split": cache.naming["split"],
        "split_matrix": cache.naming["split_matrix"],
        "tokenizer": tokenizer,
    }


def _blend_identifiers(cache: Contents, row: int, datasets: list[dict[str, Any]]) -> dict[str, Any]:
    blend = cache.table("blends")[row]
    members = cache.table("members")
    members = members[members["blend"] == row]
    exhaustive = bool(blend["exhaustive"])
    samples = cache.table("sections")["samples"]
    weights = samples[members["section"].astype(np.int64)] if exhaustive else members["weight"]
    return {
        "class": "BlendedDataset",
        "datasets": datasets,
        "split": blend["split"].decode("ascii"),
        "weights": weights.tolist(),
        "size": None if exhaustive else int(blend["size"]),
    }
