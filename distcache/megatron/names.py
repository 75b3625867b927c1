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
from distcache.megatron.tokenizers import Release, identifiers_of


class Naming(msgspec.Struct, frozen=True):
    """What decides Megatron's names beside the cache."""

    # fields for `distcache.megatron.tokenizers.identifiers_of`; by default the cache's
    tokenizer: dict[str, Any] | None = None
    # every file gets the name that each of them looks for; by default the one of the tokenizer
    releases: tuple[Release, ...] = ()
    # whether the names are those of ``--fim-data``, that is of `GPTFIMDataset`; by default as the
    # cache says
    fim: bool | None = None


class MegatronFile(msgspec.Struct, frozen=True):
    """The files of one section or blend."""

    stem: str  # start of the names: digest, class and split
    description: str  # the text of ``<stem>-description.txt``
    arrays: dict[str, ArrayView]  # each becomes ``<stem>-<name>.npy``


def megatron_files(
    cache: Contents,
    rename: Callable[[str], str] = str,
    naming: Naming = Naming(),  # noqa: B008  frozen
) -> Iterator[MegatronFile]:
    """Yield everything that Megatron would look for, each name once.

    Parameters
    ----------
    cache : Cache
        The cache.
    rename : callable
        Function from a path prefix in the cache to the one that training will be given.
    naming : Naming
        Tokenizer and releases, which decide the names, too.

    Yields
    ------
    MegatronFile
        Files for each name of the tokenizer: sections, then blends.

    Raises
    ------
    ConfigError
        If neither the cache nor the caller knows the tokenizer, or its name in a release.
    """
    tokenizer = naming.tokenizer if naming.tokenizer is not None else cache.naming["tokenizer"]
    if tokenizer is None:
        raise ConfigError(
            f"{cache.path}: does not know the tokenizer, which enters Megatron's file names; give "
            "--tokenizer FILE, a description.txt that Megatron wrote with it, or a file of its "
            "options"
        )
    prefixes = [rename(prefix) for prefix in cache.prefixes]
    fim = cache.naming.get("fim_data", False) if naming.fim is None else naming.fim
    kind = "GPTFIMDataset" if fim else "GPTDataset"
    for name in identifiers_of(tokenizer, naming.releases):
        yield from _files_of(cache, prefixes, kind, name)


def _files_of(
    cache: Contents, prefixes: list[str], kind: str, tokenizer: dict[str, Any]
) -> Iterator[MegatronFile]:
    blends: dict[int, list[dict[str, Any]]] = {}
    seen: set[str] = set()
    for member in cache.table("members"):
        requested = int(member["requested"])
        identifiers = {"class": kind} | {
            "dataset_path": prefixes[int(member["source"])],
            "num_samples": None if requested < 0 else requested,
            "index_split": member["split"].decode("ascii"),
            "random_seed": cache.identity["seed"],
            "sequence_length": cache.identity["sequence_length"],
            "split": cache.naming["split"],
            "split_matrix": cache.naming["split_matrix"],
            "tokenizer": tokenizer,
        }
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
