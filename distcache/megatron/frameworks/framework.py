"""What a framework that reads Megatron's order is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from distcache.cache.contents import Contents
from distcache.megatron.arguments import DEFAULT_SURPLUS, Arguments
from distcache.megatron.names import NamedArrays, Naming
from distcache.plan.config import SPLITS
from distcache.storage.url import is_url

Rename = Callable[[str], str]
AS_OPTIONS: Final = " \\\n    "
AS_YAML: Final = "\n"


class ExportPlace(NamedTuple):
    """Where an export is."""

    directory: Path  # directory of the files, absolute
    stem: Path  # start of the paths of further files
    objects: Path | None = None  # argument of `distcache.megatron.arguments.megatron_arguments`


class Framework(NamedTuple):
    """A framework that reads Megatron's order."""

    title: str  # name and release by which its files are named
    # what it looks for, by the names that training will give the corpora
    files: Callable[[Contents, Rename, Naming], Iterator[NamedArrays]]
    # options or YAML that make it look for them
    settings: Callable[[Contents, ExportPlace, Rename, Naming], Arguments]
    # reasons why it would not find the arrays or would read others; the last are paths under which
    # the `.idx` files can be read now
    refusals: Callable[[Contents, Rename, Sequence[str]], Iterator[str]]
    joint: str = AS_OPTIONS  # text between the lines of its settings
    # whether a directory can have the blends of one cache only
    takes_any_blend: bool = False
    separators: str = ""  # characters that the name of the directory cannot have


def yaml_lines(document: Any) -> tuple[str, ...]:
    """Return a document as lines of YAML."""
    import yaml  # noqa: PLC0415  rarely needed

    return tuple(yaml.safe_dump(document, sort_keys=False, width=1 << 20).splitlines())


def continued(cache: Contents) -> Iterator[str]:
    """Yield the reason why no framework finds the arrays of a cache that continues another."""
    if "continue" in cache.identity:
        yield (
            "continues another cache, whose sections have other sizes than a framework would "
            "compute, so that it would not find them; train with distcache.megatron.provider"
        )


def unsupported_options(cache: Contents, title: str) -> Iterator[str]:
    """Yield why a framework that takes no options of the order would read other samples.

    Parameters
    ----------
    cache : Contents
        The cache.
    title : str
        Name of the framework.
    """
    yield from continued(cache)
    identity = cache.identity
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
            yield f"has {name}, which {title} does not know"
    if cache.table("sources")["columns_end"].any():
        yield f"has corpora of rows, which {title} does not read"
    for prefix in filter(is_url, cache.prefixes):
        yield f"has {prefix}, an object, which {title} is not given; copy the corpus to a directory"


def blends_of_one(cache: Contents) -> list[str]:
    """Return the splits whose blend has a single corpus, which only Megatron-Core blends."""
    members = cache.table("members")
    splits: dict[str, list[int]] = {}
    for split, blend in zip(members["split"].tolist(), members["blend"].tolist(), strict=True):
        if blend >= 0:
            splits.setdefault(split.decode("ascii"), []).append(blend)
    return [split for split, blends in splits.items() if len(blends) == 1]


def samples_asked(cache: Contents) -> dict[str, int | None]:
    """Return the samples that a cache was built for, by split; None is one epoch."""
    return {split: cache.identity["samples"][split] for split in SPLITS}
