"""Epochs in a configuration: as numbers of samples and weights, and as limits.

An epoch of a corpus is each of its tokens once, in the split of training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from distcache.corpus import Corpus
from distcache.errors import ConfigError
from distcache.plan.config import BlendEntry, Config, Samples, with_training
from distcache.plan.model import CorpusEpochs
from distcache.plan.packing import GroupKey, PackedGroup, packed_of, rules_of
from distcache.plan.sizes import WHOLE, normalize, sequence_range, split_matrix

MAX_NAMED: Final = 3
NOISE: Final = 1e-9  # by which epochs may exceed a limit


class EpochSizes:
    """How many samples an epoch of each corpus gives to training."""

    def __init__(
        self,
        config: Config,
        corpora: Mapping[str, Corpus],
        groups: Mapping[GroupKey, PackedGroup],
    ) -> None:
        self._config, self._corpora, self._groups = config, corpora, groups
        matrix = [WHOLE] if config.split is None else split_matrix(config.split)
        self._share = matrix[0]
        self._units: dict[str, tuple[int, int, int]] = {}
        self.unit = "tokens" if config.packing is None and config.sequence_length > 1 else "samples"

    def units(self, prefix: str) -> tuple[int, int, int]:
        """Return the units of an epoch, those of a sample, and those that all samples share.

        A unit is a token, a record, or a packed sample.
        """
        if prefix not in self._units:
            self._units[prefix] = self._count(prefix)
        return self._units[prefix]

    def _count(self, prefix: str) -> tuple[int, int, int]:
        corpus, config = self._corpora[prefix], self._config
        if self._share is None:
            return 0, 1, 0
        begin, end = sequence_range(self._share, corpus.facts.sequences)
        if corpus.facts.rows:
            return end - begin, 1, 0
        if config.packing is not None:
            packed = packed_of(corpus.facts, begin, end, rules_of(config), self._groups)
            return packed.rows, 1, 0
        return corpus.tokens_in(begin, end), config.sequence_length, int(config.add_extra_token)

    def samples(self, prefix: str, epochs: float) -> int:
        """Return the whole samples of some epochs of a corpus."""
        units, of_sample, shared = self.units(prefix)
        return max(int(epochs * units) - shared, 0) // of_sample

    def epochs(self, prefix: str, samples: float) -> float:
        """Return how often samples see a corpus."""
        units, of_sample, _ = self.units(prefix)
        return samples * of_sample / units if units else 0.0


def has_epochs(config: Config) -> bool:
    """Return whether a configuration names epochs, or limits them."""
    entries = [entry for blend in config.blends().values() for entry in blend]
    return (
        config.max_epochs is not None
        or (config.samples is not None and isinstance(config.samples.train, str))
        or any(entry.epochs is not None or entry.max_epochs is not None for entry in entries)
    )


def in_numbers(config: Config, sizes: EpochSizes) -> Config:
    """Return a configuration with samples and weights in the place of epochs.

    Raises
    ------
    ConfigError
        If something contradicts the epochs, or a corpus gives no sample.
    """
    blend = config.blends().get("train", ())
    train = config.samples.train if config.samples is not None else 0
    of_all = float(train.partition("e")[0]) if isinstance(train, str) else None
    problems = _contradictions(config, blend, of_all)
    if problems:
        raise ConfigError(*problems)
    given = [of_all if entry.epochs is None else entry.epochs for entry in blend]
    epochs = [number for number in given if number is not None]
    if not epochs:
        return config
    samples = [
        sizes.samples(entry.path, number) for entry, number in zip(blend, epochs, strict=True)
    ]
    few = [
        f"{entry.path}: an epoch of it has {sizes.units(entry.path)[0]:,} {sizes.unit} for "
        f"training, so that {number:g} epochs give no sample"
        for entry, number, count in zip(blend, epochs, samples, strict=True)
        if not count
    ]
    if few:
        raise ConfigError(*few)
    alone = len(blend) == 1
    entries = tuple(
        msgspec.structs.replace(entry, epochs=None, weight=None if alone else float(count))
        for entry, count in zip(blend, samples, strict=True)
    )
    asked = msgspec.structs.replace(config.samples or Samples(), train=sum(samples))
    return with_training(msgspec.structs.replace(config, samples=asked), entries)


def _contradictions(config: Config, blend: Sequence[BlendEntry], of_all: float | None) -> list[str]:
    """Return what epochs cannot be combined with."""
    own = [entry for entry in blend if entry.epochs is not None]
    weighted = any(entry.weight is not None for entry in blend)
    problems = [
        f"$.blend_per_split.{split}: {entry.path} has epochs or max_epochs, which only training "
        "may have"
        for split, others in config.blends().items()
        if split != "train" and config.blend is None
        for entry in others
        if entry.epochs is not None or entry.max_epochs is not None
    ]
    if of_all is not None and not blend:
        problems.append("$.samples.train: there is no train split")
    if of_all is not None and not of_all > 0:
        problems.append("$.samples.train: expected more than 0 epochs")
    if of_all is not None and (weighted or own):
        problems.append(
            "$.samples.train: epochs of all corpora contradict weights or epochs of each; give "
            "every corpus epochs instead of a weight, or a number of samples"
        )
    elif own and weighted:
        problems.append("$.blend: corpora have weights, and epochs; give one of the two for all")
    elif own and len(own) < len(blend):
        bare = ", ".join([entry.path for entry in blend if entry.epochs is None][:MAX_NAMED])
        problems.append(f"$.blend: no epochs for {bare}; give every corpus epochs, or none")
    elif own and config.samples is not None and config.samples.train != 0:
        problems.append("$.samples.train: the epochs of the corpora say how many; leave it out")
    return problems


def corpus_epochs(config: Config, sizes: EpochSizes) -> tuple[CorpusEpochs, ...]:
    """Return how often training sees each corpus, by a configuration in numbers."""
    blend = config.blends().get("train", ())
    size = config.samples_of("train")
    if size is None or (len(blend) > 1 and blend[0].weight is None):
        whole = [sizes.samples(entry.path, 1.0) for entry in blend]
        size = sum(whole) if size is None else min(size, sum(whole))
        shares = normalize(whole) if sum(whole) else [0.0] * len(blend)
    elif len(blend) == 1:
        shares = [1.0]
    else:
        shares = normalize([entry.weight or 0.0 for entry in blend])
    return tuple(
        CorpusEpochs(entry.path, share, share * size, sizes.epochs(entry.path, share * size))
        for entry, share in zip(blend, shares, strict=True)
    )


def limit_problems(config: Config, found: Sequence[CorpusEpochs]) -> list[str]:
    """Return a problem for each corpus that training would see more often than it may.

    A corpus that a blend has twice is seen as often as both entries say.
    """
    if not found:
        return []
    blend = config.blends()["train"]
    seen: dict[str, float] = {}
    for one in found:
        seen[one.corpus] = seen.get(one.corpus, 0.0) + one.epochs
    limits = [entry.max_epochs or config.max_epochs or math.inf for entry in blend]
    ratios = [seen[one.corpus] / limit for one, limit in zip(found, limits, strict=True)]
    over = [place for place, ratio in enumerate(ratios) if ratio > 1 + NOISE]
    return list(
        dict.fromkeys(
            f"{blend[place].path}: training would see it {seen[blend[place].path]:.4g} times, and "
            f"max_epochs is {limits[place]:g}: {_ways_out(config, found, ratios, place)}"
            for place in over
        )
    )


def _ways_out(
    config: Config, found: Sequence[CorpusEpochs], ratios: Sequence[float], place: int
) -> str:
    """Return what keeps the limit of one corpus: fewer samples, or a lower weight."""
    if config.continued is not None:
        return "with the samples of the continued cache; let fewer samples of it follow"
    if config.phases:
        return "give fewer samples, or lower weights of it, in the phases"
    most = int(sum(one.samples for one in found) / max(ratios) * (1 + NOISE))
    ways = f"give at most {most:,} samples of training"
    weights = [entry.weight for entry in config.blends()["train"]]
    own, share = weights[place], found[place].share / ratios[place]
    if own is None or found[place].share >= 1:
        return ways
    others = (1 - share) / (1 - found[place].share)  # factor by which their shares grow
    if any(ratio * others > 1 for n, ratio in enumerate(ratios) if n != place):
        return ways
    weight = share / (1 - share) * (math.fsum(one or 0.0 for one in weights) - own)
    return f"{ways}, or the corpus a weight of {_rounded_down(weight)} instead of {own:.6g}"


def _rounded_down(weight: float) -> str:
    """Return a weight with three digits that is not larger."""
    if weight <= 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(weight)) - 2)
    return f"{math.floor(weight / unit) * unit:.3g}"
