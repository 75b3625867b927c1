"""Make the plan of a configuration, or list all of its problems."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from distcache.corpus import Corpus
from distcache.corpus.receipt import TokenizerFacts
from distcache.errors import ConfigError
from distcache.plan.blend_counts import buffered, oversampled, smallest_surplus, target
from distcache.plan.config import SPLITS, BlendEntry, Config, Continued, key_of
from distcache.plan.identity import BOUNDS, identity_of
from distcache.plan.model import BlendPlan, Member, Plan, SectionPlan
from distcache.plan.orders import ORDERS
from distcache.plan.packing import (
    GroupKey,
    Packed,
    PackedGroup,
    count_group,
    group_ranges,
    rules_of,
)
from distcache.plan.phases import BlendPhase, lay_out_phases
from distcache.plan.problems import (
    blend_problems,
    corpus_problems,
    end_problems,
    own_samples_problems,
    packing_problems,
    partial_problem,
    request_problem,
)
from distcache.plan.sizes import (
    WHOLE,
    Bookends,
    Cut,
    normalize,
    packed_size,
    section_size,
    sequence_range,
    split_matrix,
)


def make_plan(
    config: Config,
    corpora: Mapping[str, Corpus],
    tokenizers: Mapping[str, TokenizerFacts | None] | None = None,
    groups: Mapping[GroupKey, PackedGroup] | None = None,
) -> Plan:
    """Plan every section and blend of a configuration.

    Parameters
    ----------
    config : Config
        Configuration that was asked for.
    corpora : mapping of str to Corpus
        Sound corpora by path prefix, one for each of `config.prefixes()`.
    tokenizers : mapping of str to TokenizerFacts or None
        Tokenizers of the receipts, by path prefix. They are part of the plan's naming only.
    groups : mapping or None
        Groups of packed sections that were counted already; others are counted here.

    Returns
    -------
    Plan
        Equal for equal arguments.

    Raises
    ------
    ConfigError
        With one sentence for every problem, such as those on which Megatron hangs or crashes.
    """
    matrix = split_matrix(config.split) if config.split is not None else None
    planner = _Planner(config, corpora, groups or {})
    planner.problems += packing_problems(config)
    if ORDERS[config.order].is_packed:
        planner.problems += end_problems(corpora)
    for corpus in corpora.values():
        planner.problems += corpus_problems(corpus, config)
    blends = config.blends()
    for split in list(blends)[:1] if config.blend is not None else blends:
        planner.problems += blend_problems(config, split, blends[split])
        planner.problems += own_samples_problems(config, split, blends[split])
    if not planner.problems:
        for index, split in enumerate(SPLITS):
            bookends = WHOLE if matrix is None else matrix[index]
            if split in blends and bookends is not None:
                planner.add_split(split, blends[split], bookends)
    if planner.surpluses:
        planner.problems.append(
            f"$.mid_level_dataset_surplus: {config.mid_level_dataset_surplus} is too small, "
            f"{max(planner.surpluses)!r} is the smallest that works"
        )
    if not planner.problems and not planner.sections:
        planner.problems.append("$.blend: no split has a corpus, so there is nothing to build")
    if planner.problems:
        raise ConfigError(*dict.fromkeys(planner.problems))
    identity = identity_of(config, {prefix: corpora[prefix].facts for prefix in corpora})
    return Plan(
        key=key_of(identity),
        identity=identity,
        naming=_naming(config, planner.sources, tokenizers or {}),
        sources=tuple(corpus.facts for corpus in corpora.values()),
        sections=tuple(planner.sections.values()),
        blends=tuple(planner.blends),
        members=tuple(planner.members),
    )


def _naming(
    config: Config,
    sources: Mapping[str, int],
    tokenizers: Mapping[str, TokenizerFacts | None],
) -> dict[str, Any]:
    """Return what the names of Megatron's files follow from."""
    return {
        "split": config.split,
        "split_matrix": split_matrix(config.split) if config.split is not None else None,
        "tokenizer": config.tokenizer,
        **({"fim_data": True} if config.fim_data else {}),
        "blends": {
            split: [(sources[source.path], source.weight) for source in blend]
            for split, blend in config.blends().items()
        },
        "corpus_tokenizers": [
            {"name": known.name, "digest": known.digest} if known else None
            for known in map(tokenizers.get, sources)
        ],
    }


class _Planner:
    """Collects sections, each once, and the blends over them, split by split."""

    def __init__(
        self,
        config: Config,
        corpora: Mapping[str, Corpus],
        groups: Mapping[GroupKey, PackedGroup],
    ) -> None:
        self.config = config
        self.groups = groups
        self.fused = config.blend_arithmetic == "fused"
        self.corpora = corpora
        self.sources = {prefix: index for index, prefix in enumerate(corpora)}
        self.sections: dict[str, SectionPlan] = {}
        self.blends: list[BlendPlan] = []
        self.members: list[Member] = []
        self.places: dict[str, int] = {}
        self.problems: list[str] = []
        self.surpluses: list[float] = []

    def add_split(self, split: str, blend: tuple[BlendEntry, ...], bookends: Bookends) -> None:
        """Add the sections of one split, and the blend over them, if there is one."""
        weighted = blend[0].weight is not None
        per_split = self.config.blend is None
        several = per_split and self.config.multiple_validation_sets and split == "valid"
        if several or (len(blend) == 1 and (per_split or not weighted)):
            self._add_alone(split, blend, bookends)
        elif weighted:
            self._add_weighted(split, blend, bookends)
        else:
            self._add_unweighted(split, blend, bookends)

    def _add_alone(self, split: str, blend: tuple[BlendEntry, ...], bookends: Bookends) -> None:
        of_split = self.config.samples_of(split)
        if len(blend) > 1 and self.config.full_validation and of_split is not None:
            self.problems.append(
                f"$.samples.valid: {of_split}, expected null, since full_validation runs over one "
                "pass of each validation set"
            )
        for source in blend:
            requested = of_split if source.samples is None else source.samples
            section = self._section(source.path, split, requested, bookends)
            self._add_member(split, source.path, section, requested)
            if section is None or len(blend) > 1 or requested is None:
                continue
            # Only the ceiling in 32-bit float falls short, beyond 2**24 samples.
            if 0 < section.size.samples < requested:
                self.problems.append(
                    f"{source.path}: split {split} gives {section.size.samples} of {requested} "
                    "samples, because Megatron counts a kept partial sample in 32-bit float; "
                    "ask for fewer"
                )

    def _add_weighted(self, split: str, blend: tuple[BlendEntry, ...], bookends: Bookends) -> None:
        size = self.config.samples_of(split)
        assert size is not None, "blend_problems refuses weights without a size"
        surplus = self.config.mid_level_dataset_surplus
        if self.config.phases and split == "train":
            self._add_phases(blend, bookends, size)
            return
        shares = normalize([source.weight or 0.0 for source in blend])
        targets = [target(size, share) for share in shares]
        requests = [buffered(size, share, surplus) for share in shares]
        sections = self._sections(split, blend, requests, bookends)
        whole = [section for section in sections if section is not None]
        if len(whole) == len(blend):
            weights = normalize(shares)
            self._check_oversampling(split, blend, whole, weights, targets)
            self._add_blend(split, blend, whole, requests, weights, sum(targets))

    def _add_phases(self, blend: tuple[BlendEntry, ...], bookends: Bookends, samples: int) -> None:
        """Add the blend of training whose weights change."""
        config, continued = self.config, self.config.continued
        surplus = config.mid_level_dataset_surplus
        shares = normalize([source.weight or 0.0 for source in blend])
        targets = [target(samples, share) for share in shares]
        size = sum(targets) if continued is None else samples
        requests = [buffered(samples, share, surplus) for share in shares]
        if continued is None and None in self._sections("train", blend, requests, bookends):
            return  # it is seen before all samples are drawn
        phases = lay_out_phases(config.phases, config.sequence_length, size, fused=self.fused)
        taken = phases[-1].after
        if continued is not None:
            grows = ORDERS[config.order].whole_passes
            for corpus, before in enumerate(continued.requested):
                if before is None:
                    requests[corpus] = buffered(taken[corpus], 1.0, surplus)
                else:
                    requests[corpus] = max(before, taken[corpus]) if grows else before
        found = self._sections("train", blend, requests, bookends)
        sections = [section for section in found if section is not None]
        if len(sections) < len(blend):
            return
        for corpus, section in enumerate(sections):
            if continued is not None and continued.requested[corpus] is not None:
                self._check_continued(continued, corpus, section, taken[corpus])
            elif taken[corpus] > section.size.samples:
                self.surpluses.append(smallest_surplus(section, taken[corpus], targets[corpus]))
                self.problems.append(
                    f"{blend[corpus].path}: the phases ask it for {taken[corpus]} samples and it "
                    f"has {section.size.samples}"
                )
        self._add_blend("train", blend, sections, requests, normalize(shares), size, phases)

    def _sections(
        self, split: str, blend: tuple[BlendEntry, ...], requests: list[int], bookends: Bookends
    ) -> list[SectionPlan | None]:
        """Return the section of each corpus, or None with a problem."""
        return [
            self._section(source.path, split, request, bookends)
            for source, request in zip(blend, requests, strict=True)
        ]

    def _check_continued(
        self, continued: Continued, corpus: int, section: SectionPlan, taken: int
    ) -> None:
        """Find what keeps a section from being that of the cache that is continued."""
        prefix, found = list(self.corpora.items())[section.source]
        if key_of(found.facts.identity) != continued.corpora[corpus]:
            self.problems.append(
                f"{prefix}: is not the corpus that {continued.path} was built from; only that one "
                "can be continued"
            )
        elif taken > section.size.samples:
            self.problems.append(
                f"{prefix}: the phases ask it for {taken} samples, those of {continued.path} "
                f"included, whose section has {section.size.samples}: take fewer, or give what is "
                "left of it as another corpus (`distcache rest`); sections of order: passes grow"
            )

    def _add_unweighted(
        self, split: str, blend: tuple[BlendEntry, ...], bookends: Bookends
    ) -> None:
        size = self.config.samples_of(split)
        sections = [self._section(source.path, split, None, bookends) for source in blend]
        whole = [section for section in sections if section is not None]
        if len(whole) < len(blend):
            return
        available = [section.size.samples for section in whole]
        empty = [source.path for source, have in zip(blend, available, strict=True) if have == 0]
        if empty:
            self.problems += [
                f"{prefix}: has not one whole sample in split {split}, and Megatron refuses a "
                "blend by size with an empty corpus; drop it or give weights"
                for prefix in empty
            ]
            return
        requests: list[int | None] = [None] * len(blend)
        if size is None:
            self._add_blend(split, blend, whole, requests, available, sum(available))
            return
        size = min(size, sum(available))
        weights = normalize(available)
        for corpus, taken in oversampled(weights, size, available, fused=self.fused):
            self.problems.append(
                f"{blend[corpus].path}: the blend of split {split} by size asks it for {taken} "
                f"samples and it has {available[corpus]}; no mid_level_dataset_surplus changes "
                f"that, so give weights, or set samples.{split} to null"
            )
        self._add_blend(split, blend, whole, requests, weights, size)

    def _check_oversampling(
        self,
        split: str,
        blend: tuple[BlendEntry, ...],
        sections: list[SectionPlan],
        weights: list[float],
        targets: list[int],
    ) -> None:
        available = [section.size.samples for section in sections]
        for corpus, taken in oversampled(weights, sum(targets), available, fused=self.fused):
            self.surpluses.append(smallest_surplus(sections[corpus], taken, targets[corpus]))
            self.problems.append(
                f"{blend[corpus].path}: the blend of split {split} asks it for {taken} samples and "
                f"it has {available[corpus]}"
            )

    def _add_blend(
        self,
        split: str,
        blend: tuple[BlendEntry, ...],
        sections: list[SectionPlan],
        requests: list[int] | list[int | None],
        weights: list[float] | list[int],
        size: int,
        phases: tuple[BlendPhase, ...] = (),
    ) -> None:
        exhaustive = all(isinstance(weight, int) for weight in weights)
        shares = () if exhaustive else tuple(float(weight) for weight in weights)
        sizes = tuple(int(weight) for weight in weights) if exhaustive else ()
        identity: dict[str, Any] = {"order": "megatron", "weights": shares, "sizes": sizes}
        identity |= {"size": size, **({"arithmetic": "fused"} if self.fused else {})}
        if phases:
            identity["phases"] = [[phase.samples, phase.weights] for phase in phases]
        key = key_of(identity)
        for place, source in enumerate(blend):
            weight = None if exhaustive else shares[place]
            self._add_member(
                split, source.path, sections[place], requests[place], len(self.blends), weight
            )
        self.blends.append(BlendPlan(key, split, shares, sizes, size, self.fused, phases))

    def _add_member(
        self,
        split: str,
        prefix: str,
        section: SectionPlan | None,
        requested: int | None,
        blend: int | None = None,
        weight: float | None = None,
    ) -> None:
        if section is None:
            return
        place = self.places[section.key]
        self.members.append(Member(split, self.sources[prefix], place, requested, blend, weight))

    def _section(
        self, prefix: str, split: str, requested: int | None, bookends: Bookends
    ) -> SectionPlan | None:
        """Return the section of a corpus and split, or None and a problem."""
        config, corpus = self.config, self.corpora[prefix]
        rows, cut = corpus.facts.rows, _cut(config, split, rows=corpus.facts.rows)
        begin, end = sequence_range(bookends, corpus.facts.sequences)
        tokens = end - begin if rows else corpus.tokens_in(begin, end)
        packed = self._packed(prefix, begin, end) if ORDERS[config.order].is_packed else None
        if packed is not None:
            size = packed_size(requested, packed.rows)
        else:
            size = section_size(requested, tokens, cut)
        problem = request_problem(prefix, split, requested, None if size is None else size.passes)
        if size is None and packed is not None and tokens:
            problem = (
                f"{prefix}: all documents of split {split} are longer than sequence_length, and "
                "longer: drop leaves them out"
            )
        if problem is not None or size is None:
            self.problems += [] if problem is None else [problem]
            return None
        if ORDERS[config.order].whole_passes:
            size = msgspec.structs.replace(size, separate_samples=None)
        section = SectionPlan(
            key="",
            source=self.sources[prefix],
            begin=begin,
            end=end,
            tokens=tokens,
            seed=config.seed,
            cut=cut,
            size=size,
            order=config.order,
            window=config.window if ORDERS[config.order].has_windows else None,
            rows=rows,
            packed=packed,
        )
        content = {
            "order": section.order,
            "corpus": corpus.facts.identity,
            "range": [section.begin, section.end],
            "seed": section.seed,
            "sequence_length": section.cut.sequence_length,
            "extra_token": section.cut.extra_token,
            "size": msgspec.to_builtins(section.size),
            **({"window": section.window} if section.window else {}),
            **({"bounds": BOUNDS} if ORDERS[section.order].has_bounds and not rows else {}),
            **({"rows": True} if section.rows else {}),
            **({"packing": msgspec.to_builtins(packed.rules)} if packed is not None else {}),
        }
        section = msgspec.structs.replace(section, key=key_of(content))
        if (problem := partial_problem(section, corpus)) is not None:
            self.problems.append(problem)
            return None
        self.places.setdefault(section.key, len(self.places))
        return self.sections.setdefault(section.key, section)

    def _packed(self, prefix: str, begin: int, end: int) -> Packed:
        rules, facts = rules_of(self.config), self.corpora[prefix].facts
        groups = (
            self.groups.get((prefix, *bounds)) or count_group(facts, *bounds, rules)
            for bounds in group_ranges(begin, end)
        )
        return Packed(rules, tuple(groups))


def _cut(config: Config, split: str, *, rows: bool) -> Cut:
    """Return how the sequences of a split are cut into samples."""
    if ORDERS[config.order].whole_passes:
        return Cut(config.sequence_length, config.add_extra_token and not rows, False)
    keep_partial = split == "valid" and not config.drop_last_partial_validation_sequence
    return Cut(config.sequence_length, config.add_extra_token, keep_partial)
