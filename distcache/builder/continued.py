"""What a cache has from the one that it continues: the consumed phases, and the corpora."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from distcache.cache import Cache, open_cache
from distcache.cache.contents import facts_of
from distcache.cache.corpus_places import corpus_places, moves_from
from distcache.corpus import Corpus, bin_path, idx_path
from distcache.errors import ConfigError, NotReady
from distcache.plan.config import SPLITS, Config, Continue, Continued, GoneCorpus, Phase, key_of
from distcache.plan.identity import own_fields
from distcache.plan.model import Plan
from distcache.storage.place import exists
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
    phases = config.phases or ()
    if not phases or not blend:
        raise ConfigError(
            "$.continue: say what follows: weights, or one corpus, with samples.train; or phases"
        )
    cache = open_cache(wanted.cache)
    members = cache.table("members")
    members = members[members["split"] == b"train"]
    _require_alike(config, cache)
    if not len(members):
        raise ConfigError(f"$.continue: {cache.path} has no samples of training")
    sections = cache.table("sections")[members["section"].astype(np.int64)]
    is_blend = int(members["blend"][0]) >= 0  # one corpus alone has none
    size = int(
        cache.table("blends")["size"][members["blend"][0]] if is_blend else sections["samples"][0]
    )
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
    for old, new in enumerate(places):
        if new is None:
            continue
        asked = int(members["requested"][old])
        requested[new] = int(sections["samples"][old]) if asked < 0 else asked  # one pass
        keys[new] = key_of(corpora[old][0])
    ended = [
        (int(source), new)
        for source, new in zip(members["source"], places, strict=True)
        if new is not None and all(phase.weights[new : new + 1] == (0.0,) for phase in phases)
    ]
    others = [] if config.blend is not None else [config.blends().get(s, ()) for s in SPLITS[1:]]
    needed = {entry.path for other in others for entry in other}
    places_ended = {new for _, new in ended}
    needed |= {entry.path for n, entry in enumerate(blend) if n not in places_ended}
    before = []
    for samples, weights in consumed:
        moved = [0.0] * len(blend)
        for new, weight in zip(places, weights, strict=True):
            if new is not None:
                moved[new] = weight
        before.append(Phase(tuple(moved), samples=samples))
    continued = Continued(
        path=str(cache.path),
        key=cache.key,
        samples=wanted.samples,
        requested=tuple(requested),
        corpora=tuple(keys),
        ended=tuple(new for _, new in ended),
        gone=_gone_corpora(
            cache, {n: blend[new].path for n, new in ended if blend[new].path not in needed}
        ),
    )
    return msgspec.structs.replace(
        config, phases=(*before, *phases), continued=continued, continue_=None
    )


def _gone_corpora(cache: Cache, prefixes: Mapping[int, str]) -> dict[str, GoneCorpus]:
    """Return what a cache says of those corpora, by source, that lack a file."""
    sources = cache.table("sources")
    return {
        prefix: _recorded(cache, source, prefix)
        for source, prefix in prefixes.items()
        if sources["shards_end"][source] == sources["shards_begin"][source]
        and not (exists(idx_path(prefix)) and exists(bin_path(prefix)))
    }


def _recorded(cache: Cache, source: int, prefix: str) -> GoneCorpus:
    facts = facts_of(cache, source, prefix)
    own = [entry for entry in cache.table("sections") if entry["source"] == source]
    tokens = {f"{entry['begin']}:{entry['end']}": int(entry["tokens"]) for entry in own}
    return GoneCorpus(facts, tokens, tuple(entry["key"].decode("ascii") for entry in own))


class RecordedCorpus(Corpus):
    """A corpus of which only what a cache says is known."""

    def __init__(self, known: GoneCorpus) -> None:
        super().__init__(known.facts)
        self._tokens = known.tokens

    def tokens_in(self, begin: int, end: int) -> int:
        """Return the tokens of a range that has a section in the cache."""
        found = self._tokens.get(f"{begin}:{end}")
        return super().tokens_in(begin, end) if found is None else found


def require_sections(plan: Plan, gone: Mapping[str, GoneCorpus]) -> None:
    """Refuse a plan that needs files which are gone, because its sections are in no cache.

    Raises
    ------
    NotReady
        Naming the corpora.
    """
    prefixes = [source.prefix for source in plan.sources]
    missing = {
        prefixes[section.source]
        for section in plan.sections
        if prefixes[section.source] in gone
        and section.key not in gone[prefixes[section.source]].sections
    }
    if missing:
        raise NotReady(
            *(
                f"{idx_path(prefix)}: is gone, and the cache that is continued does not have this "
                "section of it; bring its files back"
                for prefix in sorted(missing)
            )
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
    weights = [1.0] if len(blend) == 1 else [entry[1] for entry in blend]
    phases = identity.get("phases") or [[samples, weights]]
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
