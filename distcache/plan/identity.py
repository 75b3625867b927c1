"""The identity of a cache: what changes its arrays, and what it shares with other caches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from distcache.corpus import CorpusFacts
from distcache.plan.config import SPLITS, BlendEntry, Config, key_of
from distcache.plan.orders import ORDERS
from distcache.plan.packing import rules_of

# Version of the rule by which samples belong to passes and windows.
BOUNDS: Final = 2


def own_fields(config: Config, *, of_tokens: bool) -> dict[str, Any]:
    """Return the fields of an identity that only some orders or machines have.

    Parameters
    ----------
    config : Config
        Configuration that was asked for.
    of_tokens : bool
        Whether its corpora consist of tokens, and not of rows.
    """
    order = ORDERS[config.order]
    fused = config.blend_arithmetic == "fused"  # what is older than the field has the other
    found: dict[str, Any] = {"blend_arithmetic": "fused"} if fused else {}
    found |= {"window": config.shards_of_window} if order.has_windows else {}
    found |= {"bounds": BOUNDS} if order.has_bounds and of_tokens else {}
    found |= {"packing": msgspec.to_builtins(rules_of(config))} if order.is_packed else {}
    return found


def identity_of(config: Config, corpora: Mapping[str, CorpusFacts]) -> dict[str, Any]:
    """Return everything of a configuration that changes arrays.

    Corpora are part of it by content and never by path, so that a corpus keeps its key where it is
    moved and loses it when it is tokenized again in place. The tokenizer and `full_validation`
    change no array and are left out.

    Parameters
    ----------
    config : Config
        Configuration that was asked for.
    corpora : mapping of str to CorpusFacts
        Facts of the corpora, by path prefix.

    Returns
    -------
    dict
        JSON values; their `key_of` is the key of the cache.
    """

    def blend(sources: tuple[BlendEntry, ...]) -> list[list[Any]]:
        return [
            [corpora[source.path].identity, source.weight]
            + ([] if source.samples is None else [source.samples])
            for source in sources
        ]

    blends = config.blends()
    chosen = own_fields(config, of_tokens=not any(facts.rows for facts in corpora.values()))
    losses = [known and known.digest for known in (corpora[p].loss for p in corpora)]
    if any(losses):
        chosen["loss"] = losses
    if config.phases:
        chosen["phases"] = [
            [phase.samples_of(config.sequence_length), list(phase.weights)]
            for phase in config.phases
        ]
    if config.continued is not None:
        before = config.continued
        chosen["continue"] = {
            "key": before.key,
            "samples": before.samples,
            "requested": list(before.requested),
        }
    return chosen | {
        "order": config.order,
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


def growth_key(identity: Mapping[str, Any]) -> str | None:
    """Return what caches share of which the larger begins with the samples of the smaller.

    Parameters
    ----------
    identity : mapping
        Identity of a cache.

    Returns
    -------
    str or None
        None for Megatron's order, which shuffles the samples of all passes together, and for an
        order that this version does not know.
    """
    order = ORDERS.get(identity["order"])
    if order is None or not order.whole_passes:
        return None
    sizes = ("samples", "mid_level_dataset_surplus")
    shared = {name: value for name, value in identity.items() if name not in sizes}
    # One pass is taken whole, by another rule than a number of samples.
    shared["samples"] = {split: count is not None for split, count in identity["samples"].items()}
    return key_of(shared)
