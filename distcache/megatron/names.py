"""The names and descriptions that Megatron-Core looks for.

A file name holds the MD5 of a description, which is the JSON, indented by 4, of a dataset's
``unique_identifiers``: ``MegatronDataset`` for a section, ``BlendedDataset`` for a blend. The path
of the corpus is in it, so names are computed for the paths that training will be given.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
import numpy as np

from distcache.cache.contents import ArrayView, Contents
from distcache.errors import ConfigError
from distcache.megatron.tokenizers import Release, identifiers_of

AUTOMODEL: Final = "automodel"  # the word for NeMo Automodel instead of a release
Identifiers = dict[str, Any]
Rename = Callable[[str], str]


class Naming(msgspec.Struct, frozen=True):
    """What decides the names of files beside the cache."""

    # fields for `distcache.megatron.tokenizers.identifiers_of`; by default the cache's
    tokenizer: dict[str, Any] | None = None
    # every file gets the name that each of them looks for; by default the one of the tokenizer
    releases: tuple[Release, ...] = ()
    # whether the names are those of ``--fim-data``, that is of `GPTFIMDataset`; by default as the
    # cache says
    fim: bool | None = None
    # whether NeMo Automodel looks for the files, instead of Megatron-Core
    automodel: bool = False

    def tokenizer_for(self, cache: Contents) -> dict[str, Any]:
        """Return the tokenizer that is part of the names: the caller's, or the cache's.

        Raises
        ------
        ConfigError
            If neither is known.
        """
        found: dict[str, Any] | None = self.tokenizer
        found = cache.naming["tokenizer"] if found is None else found
        if found is None:
            raise ConfigError(
                f"{cache.path}: does not know the tokenizer, which is part of the file names; give "
                "--tokenizer FILE, a description.txt that Megatron wrote with it, or a file of its "
                "options"
            )
        return found


class NamedArrays(msgspec.Struct, frozen=True):
    """The files of one section or blend."""

    stem: str  # start of the names: digest, and mostly class and split
    split: str  # split that the arrays are of
    description: str  # the text of ``<stem>-description.txt``
    arrays: dict[str, ArrayView]  # each becomes ``<stem>-<name>.npy``


def megatron_files(cache: Contents, rename: Rename, naming: Naming) -> Iterator[NamedArrays]:
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
    for tokenizer in identifiers_of(naming.tokenizer_for(cache), naming.releases):
        yield from named_arrays(cache, rename, _with_tokenizer(tokenizer), kind=kind)


def _with_tokenizer(tokenizer: dict[str, Any]) -> Callable[[Identifiers], Identifiers]:
    """Return the function that adds the tokenizer to the identifiers of a section."""
    return lambda found: found if "datasets" in found else found | {"tokenizer": tokenizer}


def named_arrays(
    cache: Contents,
    rename: Rename,
    complete: Callable[[Identifiers], Identifiers],
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
        Function from the identifiers, without the tokenizer, to those with it.
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
        described = _describe(identifiers, arrays)
        if described.stem not in seen:
            seen.add(described.stem)
            yield described
    for row in range(len(cache.table("blends"))):
        identifiers = complete(_blend_identifiers(cache, row, blends[row]))
        yield _describe(identifiers, cache.arrays("blends", row))


def _describe(identifiers: Identifiers, arrays: dict[str, ArrayView]) -> NamedArrays:
    description = json.dumps(identifiers, indent=4)
    digest = hashlib.md5(description.encode("utf-8"), usedforsecurity=False).hexdigest()
    split = str(identifiers.get("index_split", identifiers.get("split")))
    return NamedArrays(f"{digest}-{identifiers['class']}-{split}", split, description, arrays)


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
