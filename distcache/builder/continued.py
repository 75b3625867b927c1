"""What a cache has from the one that it continues: the consumed phases, and the corpora."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import msgspec

from distcache.cache import Cache, open_cache
from distcache.cache.corpus_places import corpus_places, moves_from
from distcache.errors import ConfigError
from distcache.plan.config import Config, Continue, Continued, Phase, key_of
from distcache.plan.identity import own_fields
from distcache.storage.url import located

# Fields of a configuration by which samples are cut and shuffled.
CONTINUED_FIELDS: Final = ("order", "sequence_length", "seed", "split", "add_extra_token")


def continue_cache(config: Config, wanted: Continue) -> Config:
    """Return a configuration whose phases begin with those that were consumed of a cache.

    Parameters
    ----------
    config : Config
        A configuration with the phases that follow.
    wanted : Continue
        The cache, and how many samples of it were consumed.

    Raises
    ------
    NotReady, CacheCorrupt
        If it cannot be opened.
    ConfigError
        If it cannot be continued so.
    """
    blend = config.blends().get("train", ())
    if not config.phases or not blend:
        raise ConfigError("$.continue: give phases, which follow, and their corpora")
    cache = open_cache(wanted.cache)
    members = cache.table("members")
    members = members[members["split"] == b"train"]
    _require_alike(config, cache)
    if not len(members) or int(members["blend"][0]) < 0:
        raise ConfigError(f"$.continue: {cache.path} has no blend of training")
    size = int(cache.table("blends")[int(members["blend"][0])]["size"])
    if wanted.samples > size:
        raise ConfigError(f"$.continue.samples: {wanted.samples}, and {cache.path} has {size}")
    consumed = _consumed_phases(cache, wanted.samples)
    used = [any(weights[place] for _, weights in consumed) for place in range(len(members))]
    cache.moves = moves_from([], os.environ)
    now = corpus_places(cache)
    prefixes = [(cache.prefixes[n], now[n]) for n in members["source"].tolist()]
    places = _match(cache, prefixes, used, [located(entry.path) for entry in blend])
    corpora = cache.identity["blend"] or cache.identity["blend_per_split"]["train"]
    requested: list[int | None] = [None] * len(blend)
    keys: list[str | None] = [None] * len(blend)
    phases = []
    for old, new in enumerate(places):
        if new is not None:
            requested[new] = int(members["requested"][old])
            keys[new] = key_of(corpora[old][0])
    for samples, weights in consumed:
        moved = [0.0] * len(blend)
        for new, weight in zip(places, weights, strict=True):
            if new is not None:
                moved[new] = weight
        phases.append(Phase(tuple(moved), samples=samples))
    continued = Continued(str(cache.path), cache.key, wanted.samples, tuple(requested), tuple(keys))
    return msgspec.structs.replace(
        config, phases=(*phases, *config.phases), continued=continued, continue_=None
    )


def _require_alike(config: Config, cache: Cache) -> None:
    """Refuse a cache whose samples are made in another way."""
    wanted = {name: getattr(config, name) for name in CONTINUED_FIELDS}
    wanted |= own_fields(config, of_tokens=config.sequence_length > 1)
    names = dict.fromkeys([*wanted, "window", "packing", "bounds", "blend_arithmetic"])
    differing = [
        f"$.continue: {name} is {wanted.get(name)!r}, and {cache.identity.get(name)!r} in "
        f"{cache.path}"
        for name in names
        if wanted.get(name) != cache.identity.get(name)
    ]
    if differing:
        raise ConfigError(*differing)


def _consumed_phases(cache: Cache, samples: int) -> list[tuple[int, list[float]]]:
    """Return the phases of a cache up to a sample, each with its samples and its weights."""
    identity = cache.identity
    blend = identity["blend"] or identity["blend_per_split"]["train"]
    phases = identity.get("phases") or [[samples, [entry[1] for entry in blend]]]
    if any(weight is None for _, weights in phases for weight in weights):
        raise ConfigError(f"$.continue: {cache.path} has a blend of training without weights")
    found: list[tuple[int, list[float]]] = []
    left = samples
    for number, (count, weights) in enumerate(phases):
        is_last = number + 1 == len(phases)  # it has more samples than its number
        taken = left if is_last else min(count, left)
        if taken:
            found.append((taken, weights))
            left -= taken
    return found


def _match(
    cache: Cache,
    prefixes: Sequence[tuple[str, str]],
    used: Sequence[bool],
    blend: Sequence[str],
) -> list[int | None]:
    """Return the place of each corpus of a cache in a blend, which has them in the same order.

    The order decides between corpora whose turn it is at the same time. A corpus that was not used
    may be missing. Each has a prefix of then, and one of now.
    """
    places: list[int | None] = []
    begin = 0
    for prefix, is_used in zip(prefixes, used, strict=True):
        found = next((n for n in range(begin, len(blend)) if blend[n] in prefix), None)
        if found is None and is_used:
            raise ConfigError(
                f"$.blend: {prefix[0]} is missing, or not in the order of {cache.path}; list its "
                "corpora in that order, with a weight of 0 if no more of one is wanted; new ones "
                "may be anywhere, and DISTCACHE_PREFIX says where corpora were moved"
            )
        places.append(found)
        begin = begin if found is None else found + 1
    return places
