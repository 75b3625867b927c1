"""Make the plan of a configuration, or list all of its problems."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from distcache.corpus import Corpus
from distcache.corpus.receipt import TokenizerFacts
from distcache.errors import ConfigError
from distcache.plan.blend_counts import buffered, oversampled, smallest_surplus, target
from distcache.plan.config import SPLITS, BlendEntry, Config, Continued, key_of
from distcache.plan.epochs import (
    EpochSizes,
    corpus_epochs,
    has_epochs,
    in_numbers,
    limit_problems,
)
from distcache.plan.identity import BOUNDS, identity_of
from distcache.plan.model import BlendPlan, Member, Plan, SectionPlan
from distcache.plan.orders import ORDERS
from distcache.plan.packing import GroupKey, PackedGroup, packed_of, rules_of
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
    problems = _unusable(config, corpora)
    of_epochs, sizes = has_epochs(config), EpochSizes(config, corpora, groups or {})
    if of_epochs and problems:
        raise ConfigError(*dict.fromkeys(problems))
    config = in_numbers(config, sizes) if of_epochs else config
    planner = _Planner(config, corpora, groups or {})
    planner.problems += problems
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
    epochs = corpus_epochs(config, sizes) if of_epochs and not planner.problems else ()
    planner.problems += limit_problems(config, epochs)
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
        epochs=epochs,
    )


def _unusable(config: Config, corpora: Mapping[str, Corpus]) -> list[str]:
    """Return why corpora cannot be used in this order."""
    problems = packing_problems(config)
    if ORDERS[config.order].is_packed:
        problems += end_problems(corpora)
    for corpus in corpora.values():
        problems += corpus_problems(corpus, config)
    return problems


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
        continued = self.config.continued
        if continued is not None and self.config.blend is not None and split != "train":
            # What training draws no more is not validated either, and may be gone.
            blend = tuple(entry for n, entry in enumerate(blend) if n not in continued.ended)
        weighted = blend[0].weight is not None
        per_split = self.config.blend is None
        several = per_split and self.config.multiple_validation_sets and split == "valid"
        follows = continued is not None and split == "train"
        if several or (len(blend) == 1 and (per_split or not weighted) and not follows):
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
        """Add a blend by weights; those of training may change from phase to phase."""
        config, size = self.config, self.config.samples_of(split)
        assert size is not None, "blend_problems refuses weights without a size"
        surplus = config.mid_level_dataset_surplus
        shares = normalize([source.weight or 0.0 for source in blend])
        targets = [target(size, share) for share in shares]
        requests: list[int | None] = [buffered(size, share, surplus) for share in shares]
        given = (config.phases or ()) if split == "train" else ()
        continued = config.continued if given else None
        total = sum(targets) if continued is None else size
        lay_out = functools.partial(
            lay_out_phases, given, config.sequence_length, total, fused=self.fused
        )
        phases: tuple[BlendPhase, ...] = ()
        if continued is not None:
            phases = lay_out()
            requests = self._continued_requests(continued, phases[-1].after)
        sections = self._sections(split, blend, requests, bookends)
        if sections is None:  # before billions of samples are drawn that are refused
            return
        phases = phases or lay_out()
        weights = normalize(shares)
        available = [section.size.samples for section in sections]
        taken = (
            enumerate(phases[-1].after)
            if phases
            else oversampled(weights, total, available, fused=self.fused)
        )
        for corpus, count in taken:
            if continued is not None and continued.requested[corpus] is not None:
                self._check_continued(continued, corpus, sections[corpus], count)
            elif count > available[corpus]:
                self.surpluses.append(smallest_surplus(sections[corpus], count, targets[corpus]))
                self.problems.append(
                    f"{blend[corpus].path}: the blend of split {split} asks it for {count} samples "
                    f"and it has {available[corpus]}"
                )
        plan = BlendPlan("", split, tuple(weights), (), total, self.fused, phases)
        self._add_blend(blend, sections, requests, plan)

    def _continued_requests(self, continued: Continued, taken: Sequence[int]) -> list[int | None]:
        """Return the samples that are requested of each section that may go on."""
        grows = ORDERS[self.config.order].whole_passes
        surplus = self.config.mid_level_dataset_surplus
        return [
            buffered(count, 1.0, surplus)
            if before is None
            else (max(before, count) if grows else before)
            for before, count in zip(continued.requested, taken, strict=True)
        ]

    def _sections(
        self,
        split: str,
        blend: tuple[BlendEntry, ...],
        requests: Sequence[int | None],
        bookends: Bookends,
    ) -> list[SectionPlan] | None:
        """Return the section of each corpus, or None if one has a problem."""
        found = [
            self._section(source.path, split, request, bookends)
            for source, request in zip(blend, requests, strict=True)
        ]
        whole = [section for section in found if section is not None]
        return whole if len(whole) == len(blend) else None

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
                "left of it as another corpus (`distcache rest`); sections of shuffle: passes grow"
            )

    def _add_unweighted(
        self, split: str, blend: tuple[BlendEntry, ...], bookends: Bookends
    ) -> None:
        size = self.config.samples_of(split)
        requests = [None] * len(blend)
        sections = self._sections(split, blend, requests, bookends)
        if sections is None:
            return
        available = [section.size.samples for section in sections]
        empty = [source.path for source, have in zip(blend, available, strict=True) if have == 0]
        if empty:
            self.problems += [
                f"{prefix}: has not one whole sample in split {split}, and Megatron refuses a "
                "blend by size with an empty corpus; drop it or give weights"
                for prefix in empty
            ]
            return
        if size is None:
            plan = BlendPlan("", split, (), tuple(available), sum(available), self.fused)
            self._add_blend(blend, sections, requests, plan)
            return
        size = min(size, sum(available))
        weights = normalize(available)
        for corpus, taken in oversampled(weights, size, available, fused=self.fused):
            self.problems.append(
                f"{blend[corpus].path}: the blend of split {split} by size asks it for {taken} "
                f"samples and it has {available[corpus]}; no mid_level_dataset_surplus changes "
                f"that, so give weights, or set samples.{split} to null"
            )
        plan = BlendPlan("", split, tuple(weights), (), size, self.fused)
        self._add_blend(blend, sections, requests, plan)

    def _add_blend(
        self,
        blend: tuple[BlendEntry, ...],
        sections: list[SectionPlan],
        requests: Sequence[int | None],
        plan: BlendPlan,
    ) -> None:
        """Add a blend, which has no key yet, and its members."""
        identity: dict[str, Any] = {"order": "megatron"}
        identity |= {"weights": plan.weights, "sizes": plan.sizes, "size": plan.size}
        if self.fused:
            identity["arithmetic"] = "fused"
        if plan.phases:
            identity["phases"] = [[phase.samples, phase.weights] for phase in plan.phases]
        for place, source in enumerate(blend):
            weight = plan.weights[place] if plan.weights else None
            self._add_member(
                plan.split, source.path, sections[place], requests[place], len(self.blends), weight
            )
        self.blends.append(msgspec.structs.replace(plan, key=key_of(identity)))

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
        packed = None
        if ORDERS[config.order].is_packed:
            packed = packed_of(corpus.facts, begin, end, rules_of(config), self.groups)
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
        window = config.shards_of_window if ORDERS[config.order].has_windows else None
        content = {
            "order": config.order,
            "corpus": corpus.facts.identity,
            "range": [begin, end],
            "seed": config.seed,
            "sequence_length": cut.sequence_length,
            "extra_token": cut.extra_token,
            "size": msgspec.to_builtins(size),
            **({"window": window} if window else {}),
            **({"bounds": BOUNDS} if ORDERS[config.order].has_bounds and not rows else {}),
            **({"rows": True} if rows else {}),
            **({"packing": msgspec.to_builtins(packed.rules)} if packed is not None else {}),
        }
        section = SectionPlan(
            key=key_of(content),
            source=self.sources[prefix],
            begin=begin,
            end=end,
            tokens=tokens,
            seed=config.seed,
            cut=cut,
            size=size,
            order=config.order,
            window=window,
            rows=rows,
            packed=packed,
        )
        if (problem := partial_problem(section, corpus)) is not None:
            self.problems.append(problem)
            return None
        self.places.setdefault(section.key, len(self.places))
        return self.sections.setdefault(section.key, section)


def _cut(config: Config, split: str, *, rows: bool) -> Cut:
    """Return how the sequences of a split are cut into samples."""
    if ORDERS[config.order].whole_passes:
        return Cut(config.sequence_length, config.add_extra_token and not rows, False)
    keep_partial = split == "valid" and not config.drop_last_partial_validation_sequence
    return Cut(config.sequence_length, config.add_extra_token, keep_partial)
