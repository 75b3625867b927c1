"""Megatron-Core itself, from PyPI, is asked for what a configuration asks distcache for."""

from __future__ import annotations

import dataclasses
import warnings
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from megatron.core import package_info
    from megatron.core.datasets.blended_megatron_dataset_builder import (
        BlendedMegatronDatasetBuilder,
    )
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import (
        DType,
        IndexedDataset,
        IndexedDatasetBuilder,
    )

from distcache.launch.doctor.training import alone
from distcache.megatron.tokenizers import RELEASES, Release
from distcache.plan.config import SPLITS, Config

__all__ = [
    "OPTIONS",
    "RELEASE",
    "DType",
    "IndexedDataset",
    "IndexedDatasetBuilder",
    "alone",
    "build_with_megatron",
    "selected",
]

Case = TypeVar("Case")

# Which one judges is a matter of PYTHONPATH: see `scripts/judges`.
RELEASE: Release = msgspec.convert(".".join(package_info.__version__.split(".")[:2]), Release)
OPTIONS = {field.name for field in dataclasses.fields(GPTDatasetConfig)}


def selected(cases: Iterable[Case]) -> list[Case]:
    """Return all cases for the oldest and the newest release, and a fifth of them for others."""
    return list(cases)[:: 1 if RELEASE in (RELEASES[0], RELEASES[-1]) else 5]


class Tokenizer:
    """As much of a tokenizer as index building needs."""

    vocab_size = None
    special_tokens_dict: ClassVar[dict[str, int]] = {}

    def __init__(self, unique_identifiers: dict[str, Any], eod: int = 0, pad: int = -1) -> None:
        self.unique_identifiers = OrderedDict(unique_identifiers)
        self.eod = eod
        self.pad = pad


def build_with_megatron(
    config: Config, cache: Path, eod: int = 0, pad: int = -1, **options: Any
) -> list[Any]:
    """Run Megatron's builder with the index files in a directory, and return its datasets.

    More options are fields of its configuration.
    """
    masks = {"reset_position_ids": False, "reset_attention_mask": False, "eod_mask_loss": False}
    blends: dict[str, Any] = {}
    for split, sources in config.blends().items():
        weights = [source.weight for source in sources]
        bare = all(weight is None for weight in weights)
        blends[split] = ([source.path for source in sources], None if bare else weights)
    per_split = config.blend is None
    arguments = GPTDatasetConfig(
        random_seed=config.seed,
        sequence_length=config.sequence_length,
        blend=None if per_split else blends["train"],
        blend_per_split=[blends.get(split) for split in SPLITS] if per_split else None,
        split=config.split,
        multiple_validation_sets=config.multiple_validation_sets,
        full_validation=config.full_validation,
        path_to_cache=str(cache),
        mid_level_dataset_surplus=config.mid_level_dataset_surplus,
        tokenizer=Tokenizer(config.tokenizer or {}, eod, pad),
        drop_last_partial_validation_sequence=config.drop_last_partial_validation_sequence,
        add_extra_token_to_sequence=config.add_extra_token,
        **masks | options,
    )
    sizes = [config.samples_of(split) for split in SPLITS]
    return BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, arguments).build()
