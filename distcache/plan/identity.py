"""Keys: SHA-256 over canonical JSON of all that changes arrays, and nothing else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from distcache.corpus import CorpusFacts
from distcache.plan.config import SPLITS, Config, Source

__all__ = ["ORDER", "canonical_json", "identity_of", "key_of"]

ORDER: Final = "megatron"


def canonical_json(document: object) -> str:
    """Return the one JSON text of a document: keys sorted, no white space, ASCII only."""
    return json.dumps(
        document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


def key_of(document: object) -> str:
    """Return the SHA-256 of a document's canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical_json(document).encode("ascii")).hexdigest()


def identity_of(config: Config, corpora: Mapping[str, CorpusFacts]) -> dict[str, Any]:
    """Describe all of a configuration that changes arrays.

    Corpora stand in it by content and never by path, so that a corpus keeps its key where it is
    moved and loses it when it is tokenised anew in place. The tokenizer and `full_validation`
    change no array and are left out.

    Parameters
    ----------
    config : Config
        What is asked for.
    corpora : mapping of str to CorpusFacts
        By path prefix.

    Returns
    -------
    dict
        Of JSON values; its `key_of` is the key of the cache.
    """

    def blend(sources: tuple[Source, ...]) -> list[list[Any]]:
        return [[corpora[source.path].identity, source.weight] for source in sources]

    blends = config.blends()
    return {
        "order": ORDER,
        "sequence_length": config.sequence_length,
        "seed": config.seed,
        "samples": {split: config.samples_of(split) for split in SPLITS},
        "split": config.split,
        "blend": None if config.blend is None else blend(blends["train"]),
        "blend_per_split": (
            None
            if config.blend is not None
            else {split: blend(sources) for split, sources in blends.items()}
        ),
        "mid_level_dataset_surplus": config.mid_level_dataset_surplus,
        "add_extra_token": config.add_extra_token,
        "drop_last_partial_validation_sequence": config.drop_last_partial_validation_sequence,
        "multiple_validation_sets": config.multiple_validation_sets,
    }
