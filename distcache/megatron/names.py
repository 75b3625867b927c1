"""The names and descriptions by which Megatron-Core and others find their index files.

A file name holds the MD5 of a description, which is the JSON, indented by 4, of a dataset's
``unique_identifiers``: ``MegatronDataset`` for a section, ``BlendedDataset`` for a blend. The path
of the corpus is in it, so names are computed for the paths that training will be given.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal

import msgspec
import numpy as np

from distcache.cache.contents import ArrayView, Contents
from distcache.errors import ConfigError
from distcache.megatron.tokenizers import Release, identifiers_of

FrameworkName = Literal["megatron", "automodel", "maxtext", "mindspeed"]
MEGATRON: Final = "megatron"


class Naming(msgspec.Struct, frozen=True):
    """What decides the names of files beside the cache."""

    # fields for `distcache.megatron.tokenizers.identifiers_of`; by default the cache's
    tokenizer: dict[str, Any] | None = None
    # every file gets the name that each of them looks for; by default the one of the tokenizer
    releases: tuple[Release, ...] = ()
    # whether the names are those of ``--fim-data``, that is of `GPTFIMDataset`; by default as the
    # cache says
    fim: bool | None = None
    # framework that looks for the files; by default Megatron-Core
    framework: FrameworkName | None = None

    @property
    def reader(self) -> FrameworkName:
        """The framework that reads the files."""
        return self.framework or MEGATRON


class NamedArrays(msgspec.Struct, frozen=True):
    """The files of one section or blend."""

    stem: str  # start of the names: digest, and mostly class and split
    description: str  # the text of ``<stem>-description.txt``
    arrays: dict[str, ArrayView]  # each becomes ``<stem>-<name>.npy``
    rows: int | None = None  # rows of the arrays that the files have; by default all


Identifiers = dict[str, Any]


def megatron_files(
    cache: Contents, rename: Callable[[str], str], naming: Naming
) -> Iterator[NamedArrays]:
    """Yield everything that Megatron-Core would look for, each name once.

    Parameters
    ----------
    cache : Contents
        The cache.
    rename : callable
        Function from a path prefix in the cache to the one that training will be given.
    naming : Naming
        Tokenizer and releases, which decide the names, too.

    Yields
    ------
    NamedArrays
        Files for each name of the tokenizer: sections, then blends.

    Raises
    ------
    ConfigError
        If neither the cache nor the caller knows the tokenizer, or its name in a release.
    """
    fim = cache.naming.get("fim_data", False) if naming.fim is None else naming.fim
    kind = "GPTFIMDataset" if fim else "GPTDataset"
    for tokenizer in identifiers_of(tokenizer_for(cache, naming), naming.releases):
        yield from named_arrays(cache, rename, _with_tokenizer(tokenizer), kind=kind)


def tokenizer_for(cache: Contents, naming: Naming) -> dict[str, Any]:
    """Return the tokenizer that is part of the names: the caller's, or the cache's.

    Raises
    ------
    ConfigError
        If neither is known.
    """
    tokenizer = naming.tokenizer if naming.tokenizer is not None else cache.naming["tokenizer"]
    if tokenizer is None:
        raise ConfigError(
            f"{cache.path}: does not know the tokenizer, which is part of the file names; give "
            "--tokenizer FILE, a description.txt that Megatron wrote with it, or a file of its "
            "options"
        )
    found: dict[str, Any] = tokenizer
    return found


def _with_tokenizer(tokenizer: dict[str, Any]) -> Callable[[Identifiers], Identifiers]:
    """Return the function that adds the tokenizer to the identifiers of a section."""
    return lambda found: found if "datasets" in found else found | {"tokenizer": tokenizer}


def stem_of(identifiers: Identifiers, digest: str) -> str:
    """Return the start of the names of a section's or blend's files, as Megatron-Core has it."""
    split = identifiers.get("index_split", identifiers.get("split"))
    return f"{digest}-{identifiers['class']}-{split}"


def named_arrays(
    cache: Contents,
    rename: Callable[[str], str],
    complete: Callable[[Identifiers], Identifiers],
    stem: Callable[[Identifiers, str], str] = stem_of,
    kind: str = "GPTDataset",
) -> Iterator[NamedArrays]:
    """Yield the sections and blends of a cache under the digests of their identifiers.

    Parameters
    ----------
    cache : Contents
        The cache.
    rename : callable
        Argument of `megatron_files`.
    complete : callable
        Function from the identifiers, without the tokenizer, to those that a framework has.
    stem : callable
        Function from identifiers and their digest to the start of the names.
    kind : str
        Class of the sections.
    """
    prefixes = [rename(prefix) for prefix in cache.prefixes]
    blends: dict[int, list[Identifiers]] = {}
    seen: set[str] = set()
    for member in cache.table("members"):
        requested = int(member["requested"])
        identifiers = complete(
            {
                "class": kind,
                "dataset_path": prefixes[int(member["source"])],
                "num_samples": None if requested < 0 else requested,
                "index_split": member["split"].decode("ascii"),
                "random_seed": cache.identity["seed"],
                "sequence_length": cache.identity["sequence_length"],
                "split": cache.naming["split"],
                "split_matrix": cache.naming["split_matrix"],
            }
        )
        blends.setdefault(int(member["blend"]), []).append(identifiers)
        arrays = cache.arrays("sections", int(member["section"]))
        described = _describe(identifiers, arrays, stem)
        if described.stem not in seen:
            seen.add(described.stem)
            yield described
    for row in range(len(cache.table("blends"))):
        identifiers = complete(_blend_identifiers(cache, row, blends[row]))
        yield _describe(identifiers, cache.arrays("blends", row), stem)


def _describe(
    identifiers: Identifiers,
    arrays: dict[str, ArrayView],
    stem: Callable[[Identifiers, str], str],
) -> NamedArrays:
    description, digest = description_of(identifiers)
    return NamedArrays(stem(identifiers, digest), description, arrays)


def description_of(identifiers: Identifiers) -> tuple[str, str]:
    """Return the JSON of identifiers, as frameworks write it, and its digest."""
    description = json.dumps(identifiers, indent=4)
    return description, hashlib.md5(description.encode("utf-8"), usedforsecurity=False).hexdigest()


def _blend_identifiers(cache: Contents, row: int, datasets: list[Identifiers]) -> Identifiers:
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
