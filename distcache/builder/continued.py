"""Going on with another cache: the phases that training has consumed there, and its sections."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np

from distcache.cache import Cache, open_cache
from distcache.errors import ConfigError
from distcache.plan.config import Config, Continue, Continued, Phase
from distcache.storage.url import located

# Fields that must be the same, since samples are cut and shuffled by them.
SAME: Final = ("order", "sequence_length", "seed", "split", "add_extra_token")


def continue_cache(config: Config, wanted: Continue) -> Config:
    """Return a configuration whose phases begin with those that were consumed of a cache.

    Parameters
    ----------
    config : Config
        A configuration with phases, which follow.
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
    _require_alike(config, cache, wanted)
    places = {located(entry.path): number for number, entry in enumerate(blend)}
    members = _members(cache)
    numbers = []
    for member in members:
        prefix = cache.prefixes[int(member["source"])]
        if prefix not in places:
            raise ConfigError(
                f"$.blend: {prefix} is missing, which {cache.path} has; give it a weight of 0 if "
                "no more of it is wanted"
            )
        numbers.append(places[prefix])
    requested: list[int | None] = [None] * len(blend)
    keys: list[str | None] = [None] * len(blend)
    sections = cache.table("sections")
    for number, member in zip(numbers, members, strict=True):
        requested[number] = int(member["requested"])
        keys[number] = sections[int(member["section"])]["key"].decode("ascii")
    before = []
    for samples, weights in _consumed_phases(cache, wanted.samples):
        own = [0.0] * len(blend)
        for number, weight in zip(numbers, weights, strict=True):
            own[number] = weight
        before.append(Phase(tuple(own), samples=samples))
    continued = Continued(str(cache.path), wanted.samples, tuple(requested), tuple(keys))
    return msgspec.structs.replace(
        config, phases=(*before, *config.phases), continued=continued, continue_=None
    )


def _require_alike(config: Config, cache: Cache, wanted: Continue) -> None:
    """Refuse a cache whose samples are made otherwise."""
    differing = [
        f"$.continue: {name} is {getattr(config, name)!r}, and {cache.identity[name]!r} in "
        f"{cache.path}"
        for name in SAME
        if getattr(config, name) != cache.identity[name]
    ]
    if config.blend_arithmetic != cache.identity.get("blend_arithmetic", "separate"):
        differing.append(f"$.continue: {cache.path} has another blend_arithmetic")
    if differing:
        raise ConfigError(*differing)
    members = _members(cache)
    if not len(members) or np.isnan(members["weight"]).any():
        raise ConfigError(f"$.continue: {cache.path} has no blend of training with weights")
    size = int(cache.table("blends")[int(members["blend"][0])]["size"])
    if wanted.samples > size:
        raise ConfigError(f"$.continue.samples: {wanted.samples}, and {cache.path} has {size}")


def _members(cache: Cache) -> Any:
    members = cache.table("members")
    return members[members["split"] == b"train"]


def _consumed_phases(cache: Cache, samples: int) -> list[tuple[int, list[float]]]:
    """Return the phases of a cache up to a sample, each with its samples and its weights."""
    identity = cache.identity
    blend = identity["blend"] or identity["blend_per_split"]["train"]
    phases = identity.get("phases") or [[samples, [entry[1] for entry in blend]]]
    found: list[tuple[int, list[float]]] = []
    left = samples
    for number, (count, own) in enumerate(phases):
        is_last = number + 1 == len(phases)  # which goes on beyond its number
        taken = left if is_last else min(count, left)
        if taken:
            found.append((taken, own))
            left -= taken
    return found
