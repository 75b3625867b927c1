"""MindSpeed-LLM: Megatron-Core 0.12's descriptions, with names of sections without the split.

By ``mindspeed_llm/core/datasets/gpt_dataset.py`` of MindSpeed-LLM (commit 360c0ae0), which replaces
`GPTDataset._build_document_sample_shuffle_indices` of Megatron-Core 0.12.1. Blends are
Megatron-Core's.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from distcache.cache.contents import Contents
from distcache.errors import ConfigError
from distcache.megatron.arguments import Arguments, megatron_arguments
from distcache.megatron.frameworks.framework import (
    ExportPlace,
    Framework,
    Rename,
    unsupported_options,
)
from distcache.megatron.names import (
    Identifiers,
    NamedArrays,
    Naming,
    named_arrays,
    stem_of,
    tokenizer_for,
)

TITLE: Final = "MindSpeed-LLM"
# Options of later releases of Megatron-Core.
LATER: Final = (
    "--dataloader-",
    "--full-validation",
    "--per-dataset-sequences-path",
)


def _files(cache: Contents, rename: Rename, naming: Naming) -> Iterator[NamedArrays]:
    tokenizer = tokenizer_for(cache, naming)
    if "tokenizer_type" in tokenizer:
        raise ConfigError(
            f"{cache.path}: {TITLE} describes its tokenizers in its own way; give --tokenizer "
            "FILE, a description.txt that it wrote with this tokenizer, of whatever corpus"
        )

    def complete(found: Identifiers) -> Identifiers:
        return found if "datasets" in found else found | {"tokenizer": tokenizer}

    return named_arrays(cache, rename, complete, _stem)


def _stem(identifiers: Identifiers, digest: str) -> str:
    if identifiers["class"] == "BlendedDataset":
        return stem_of(identifiers, digest)
    return f"{digest}-{identifiers['class']}"


def _settings(cache: Contents, place: ExportPlace, rename: Rename, naming: Naming) -> Arguments:
    found = megatron_arguments(cache, place.directory, place.stem, rename)
    options = tuple(option for option in found.options if not option.startswith(LATER))
    named = {word for option in options for word in shlex.split(option)}
    files = {path: text for path, text in found.files.items() if str(path) in named}
    warnings = ("with --no-shared-storage each node looks for the files in a directory of its own",)
    return Arguments(options, files, warnings)


def _refusals(cache: Contents, rename: Rename, here: Sequence[str]) -> Iterator[str]:
    yield from unsupported_options(cache, TITLE)
    if "valid" in cache.splits and cache.identity["samples"]["valid"] is None:
        yield f"validates on one epoch (samples.valid: null), which {TITLE} does not know"


MINDSPEED = Framework(title=TITLE, files=_files, settings=_settings, refusals=_refusals)
