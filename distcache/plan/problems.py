"""Configurations on which Megatron hangs or crashes, and likely mistakes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from distcache.corpus import Corpus, CorpusFacts, open_idx
from distcache.corpus.receipt import find_receipt
from distcache.corpus.sampled_tokens import negative_token
from distcache.errors import CorpusError, NotReady
from distcache.kernels import Mt19937
from distcache.plan.blend_counts import estimate_counts
from distcache.plan.config import SPLITS, BlendEntry, Config
from distcache.plan.losses import silent_warnings
from distcache.plan.model import NARROW, BlendPlan, Plan, SectionPlan
from distcache.plan.orders import ORDERS
from distcache.plan.phase_facts import phase_warnings
from distcache.plan.shared_documents import shared_document_warnings
from distcache.plan.sizes import normalize, split_matrix
from distcache.storage.threads import map_in_threads
from distcache.storage.url import is_url

MAX_CORPORA: Final = 32_766
MANY_PASSES: Final = 1000
MAX_SAMPLE_TOKENS: Final = 1 << 26  # tokens of a packed sample
MAX_NAMED: Final = 3
# Why samples that are packed have no other shuffle than that of whole passes.
UNPACKED: Final[dict[str, str]] = {
    "megatron": "Megatron cuts samples, and does not pack them",
    "windows": "samples are packed over a whole pass",
    "none": "samples are packed by length, and so have no order of the corpus",
}
LOOKED_AT: Final = 4  # sequences of each corpus whose tokens are looked at
LOOKING: Final = 8  # threads that do so
EXAMINED_FIRST: Final = 4096  # sequences that are examined before all of them


def corpus_problems(corpus: Corpus, config: Config) -> list[str]:
    """Return why a corpus that is sound by itself cannot be used by Megatron, or in this order."""
    facts = corpus.facts
    if facts.rows and not ORDERS[config.order].has_rows:
        able = ", or ".join(name for name, order in ORDERS.items() if order.has_rows)
        return [f"{facts.prefix}: consists of rows; give shuffle: {able}"]
    if facts.rows != (config.sequence_length == 1):
        wanted = "1 for rows" if facts.rows else "at least 2 tokens"
        return [
            f"$.sequence_length: {config.sequence_length}, expected {wanted} ({facts.prefix}); "
            "rows and tokens have caches of their own"
        ]
    if facts.sequences > NARROW:
        return [f"{facts.prefix}: has {facts.sequences} sequences, more than 2**31 - 1"]
    if facts.sequences == 0:
        return [f"{facts.prefix}: has no sequences"]
    if facts.bin_size == 0:
        return [f"{facts.prefix}: has no tokens, and an empty .bin cannot be mapped"]
    return []


def packing_problems(config: Config) -> list[str]:
    """Return why a configuration cannot be packed, and whether it has windows without an effect."""
    if config.window is not None and not ORDERS[config.order].has_windows:
        return ["$.window: only shuffle: windows has windows"]
    if not ORDERS[config.order].is_packed:
        return []
    found = []
    if config.shuffle not in (None, "passes"):
        found.append(f"$.shuffle: {config.shuffle}, expected passes: {UNPACKED[config.shuffle]}")
    if not config.add_extra_token:
        found.append(
            "$.add_extra_token: false, expected true with pack: without it the last token "
            "of a row that a document fills has no label"
        )
    multiple = config.packing.pad_to_multiple_of if config.packing is not None else 1
    if config.sequence_length % multiple:
        found.append(
            f"$.pack.pad_to_multiple_of: {multiple}, expected a divisor of $.sequence_length, "
            f"{config.sequence_length}"
        )
    if config.sequence_length > MAX_SAMPLE_TOKENS:
        found.append(
            f"$.sequence_length: {config.sequence_length}, expected at most "
            f"{MAX_SAMPLE_TOKENS} with pack"
        )
    return found


def blend_problems(config: Config, split: str, sources: tuple[BlendEntry, ...]) -> list[str]:
    """Return what is wrong with the weights of a blend."""
    where = f"{split}: " if config.blend is None else ""
    weights = [source.weight for source in sources if source.weight is not None]
    if not weights:
        return _too_many(where, sources)
    if len(weights) < len(sources):
        bare = [source.path for source in sources if source.weight is None]
        return [f"{where}no weight for {', '.join(bare)}; give every corpus one, or none"]
    problems = _too_many(where, sources)
    splits = SPLITS if config.blend is not None else (split,)
    problems += [
        f"$.samples.{name}: null (one pass) cannot be combined with weights, or with epochs of "
        "several corpora; give a number, 0 for a split that is not used"
        for name in splits
        if config.samples_of(name) is None
    ]
    if config.blend is None and len(sources) == 1:
        return problems
    if config.multiple_validation_sets and config.blend is None and split == "valid":
        return problems
    total = float(np.sum(np.array(weights)))
    if not 0 < total < np.inf:
        return [*problems, f"{where}weights add up to {total}, expected a positive number"]
    return problems + [
        f"{where}{source.path}: weight {source.weight} is 0 once normalized; Megatron refuses it, "
        "so drop the corpus from the blend"
        for source, weight in zip(sources, normalize(normalize(weights)), strict=True)
        if not weight > 0
    ]


def own_samples_problems(config: Config, split: str, sources: tuple[BlendEntry, ...]) -> list[str]:
    """Return which corpora of a blend may not have samples of their own."""
    if config.blend is None and config.multiple_validation_sets and split == "valid":
        return []
    return [
        f"{source.path}: has its own samples, which only validation sets may "
        "(blend_per_split.valid, with multiple_validation_sets: true)"
        for source in sources
        if source.samples is not None
    ]


def _too_many(where: str, sources: tuple[BlendEntry, ...]) -> list[str]:
    if len(sources) <= MAX_CORPORA:
        return []
    return [f"{where}{len(sources)} corpora in a blend, expected at most {MAX_CORPORA}"]


def request_problem(
    prefix: str, split: str, requested: int | None, passes: int | None
) -> str | None:
    """Return why a section cannot have the requested samples."""
    if passes is None:
        return (
            f"{prefix}: has no tokens in split {split}, so no number of passes gives "
            f"{requested} samples, and Megatron would never finish; change the split or drop "
            "the corpus"
        )
    if passes > NARROW:
        return (
            f"{prefix}: split {split} needs {passes} passes for {requested} samples, more than "
            "2**31 - 1"
        )
    return None


def partial_problem(section: SectionPlan, corpus: Corpus) -> str | None:
    """Return why a last partial sample cannot be kept.

    Where it ends in an empty document, Megatron computes the offset -1 and its own check refuses
    the sample index. Only the first draw of the last shuffle decides which document comes last.
    """
    usable = section.size.passes * section.tokens - int(section.cut.extra_token)
    if ORDERS[section.order].whole_passes:
        return None
    ends_early = section.size.samples * section.cut.sequence_length > max(usable, 0)
    if not (section.cut.extra_token and ends_early and corpus.facts.empty_sequences):
        return None
    if section.sample_type != "<i4" or corpus.length_of(last_document(section)) > 0:
        return None
    return (
        f"{corpus.facts.prefix}: the document order of split valid ends with an empty document, "
        "where Megatron fails to keep the last partial sample; set "
        "drop_last_partial_validation_sequence to true or change the seed"
    )


def last_document(section: SectionPlan) -> int:
    """Return the last entry of a section's document index, without shuffling it."""
    generator = Mt19937(section.seed)
    size = section.first_documents
    if section.size.separate_samples is not None:
        generator.skip_shuffle(size)
        size = section.documents - size
    place = int(generator.draw(size - 1, 1)[0]) if size > 1 else 0
    return section.begin + place % (section.end - section.begin)


def plan_warnings(config: Config, plan: Plan) -> list[str]:
    """Return a sentence for everything that looks like a mistake.

    Parameters
    ----------
    config : Config
        Configuration that was asked for.
    plan : Plan
        Plan of the configuration.
    """
    return [
        *_odd_split(config),
        *_end_of_order(config),
        *_repeated(plan),
        *shared_document_warnings(plan),
        *_negative_tokens(plan),
        *_missing_splits(config, plan.identity["samples"]),
        *_odd_tokenizer(config),
        *_never_drawn(plan),
        *silent_warnings(plan),
        *whole_sample_hints(config, plan),
        *_unknown_ends(plan),
        *phase_warnings(config, plan),
    ]


def _odd_split(config: Config) -> list[str]:
    if config.split is None or re.fullmatch(r"[\d.,/\s]*", config.split):
        return []
    shares = ", ".join(f"{float(share):g}" for share in re.findall(r"[.0-9]+", config.split))
    return [
        f"$.split: {config.split!r} is read as {shares}, as Megatron does: other characters "
        "do not count"
    ]


def _end_of_order(config: Config) -> list[str]:
    """Find corpora that keep their order for training, but give validation their end."""
    if (
        config.shuffle != "none"
        or config.split is None
        or sum(map(bool, split_matrix(config.split))) < 2
    ):
        return []
    return [
        f"$.split: {config.split!r} gives validation the end of each corpus, whose order "
        "shuffle: none keeps; give blend_per_split, unless the order of a corpus means nothing"
    ]


def _repeated(plan: Plan) -> list[str]:
    many = [section for section in plan.sections if section.size.passes > MANY_PASSES]
    if not many:
        return []
    most = max(many, key=lambda section: section.size.passes)
    others = f", and so for {len(many) - 1} more" if len(many) > 1 else ""
    return [
        f"{plan.sources[most.source].prefix}: is repeated for {most.size.passes:,} passes of "
        f"{most.tokens:,} tokens{others}; are samples and weights as you mean them?"
    ]


def _negative_tokens(plan: Plan) -> list[str]:
    """Find corpora whose tokens are negative, as far as some of each show it."""

    def look(source: CorpusFacts) -> str | None:
        try:
            return negative_token(source, LOOKED_AT)
        except (OSError, CorpusError, NotReady):  # of which whoever reads it will tell
            return None

    found = map_in_threads(look, plan.sources, LOOKING)
    wrong = [
        f"{source.prefix}: {message}"
        for source, message in zip(plan.sources, found, strict=True)
        if message is not None
    ]
    more = [f"{len(wrong) - MAX_NAMED} more corpora have negative tokens"]
    return wrong[:MAX_NAMED] + (more if len(wrong) > MAX_NAMED else [])


def _missing_splits(config: Config, samples: Mapping[str, int | None]) -> list[str]:
    """Find samples that are requested of a split without sequences, and so never drawn.

    Every training command asks for them, whether there is such a split or not.
    """
    if config.split is None or config.samples is None or config.of_command:
        return []
    shares = zip(SPLITS, split_matrix(config.split), strict=True)
    return [
        f"$.samples.{name}: {samples[name]} samples are asked for, but split "
        f"{config.split!r} gives {name} nothing, so there will be none"
        for name, share in shares
        if share is None and samples[name]
    ]


def _odd_tokenizer(config: Config) -> list[str]:
    if config.tokenizer is None or {"class", "tokenizer_type"} & config.tokenizer.keys():
        return []
    return [
        "$.tokenizer: has neither a class nor a tokenizer_type; it is taken for Megatron's "
        "unique_identifiers, unchanged"
    ]


def _never_drawn(plan: Plan) -> list[str]:
    """Find corpora that their blend never draws."""
    found = []
    for index, blend in enumerate(plan.blends):
        if not blend.size:
            continue
        sources = [member.source for member in plan.members if member.blend == index]
        counts = zip(sources, _likely(blend), strict=True)
        idle = [plan.sources[source].prefix for source, count in counts if not count]
        if idle:
            more = f" and {len(idle) - MAX_NAMED} more" if len(idle) > MAX_NAMED else ""
            found.append(
                f"{blend.split}: {', '.join(idle[:MAX_NAMED])}{more} will most likely give no "
                f"sample of {blend.size:,}: the weights are too small"
            )
    return found


def _likely(blend: BlendPlan) -> list[int]:
    if blend.exhaustive:
        return [1] * len(blend.sizes)
    weights = np.array(blend.weights, np.float64)
    taken: list[int] = estimate_counts(weights, np.full(len(weights), 2**62), blend.size).tolist()
    return taken


def end_problems(prefixes: Iterable[str]) -> list[str]:
    """Return which corpora of packed samples are known to have no token that ends a document."""
    receipts = {prefix: find_receipt(prefix) for prefix in prefixes}
    return [
        f"{prefix}: has no end-of-document token, so packed samples would train across documents; "
        "ingest it with --append-eod"
        for prefix, receipt in receipts.items()
        if receipt is not None and receipt.options.get("append_eod") is False
    ]


def _unknown_ends(plan: Plan) -> list[str]:
    sources = {section.source for section in plan.sections if section.packed is not None}
    bare = [p for p in (plan.sources[s].prefix for s in sorted(sources)) if find_receipt(p) is None]
    if not bare:
        return []
    others = f" and {len(bare) - 1} more" if len(bare) > 1 else ""
    return [
        f"{bare[0]}{others}: has no receipt, so that it is not known whether each document ends "
        "with the end-of-document token; without it packed samples have a loss from one to the next"
    ]


def whole_sample_hints(config: Config, plan: Plan) -> list[str]:
    """Return a hint for corpora of rows as long as a sample, or as a sample and its last label.

    Megatron's samples share one token with the next: they would run across such rows.
    """
    length = config.sequence_length
    if not config.add_extra_token or length == 1 or ORDERS[config.order].is_packed:
        return []
    found = []
    for rows, more in ((length, ""), (length + 1, f"`sequence_length: {length + 1}` and ")):
        whole = [source.prefix for source in plan.sources if _all_have(source, rows)]
        if whole:
            others = f", and of {len(whole) - 1} more corpora," if len(whole) > 1 else ""
            found.append(
                f"{whole[0]}: all of its sequences{others} have {rows} tokens; with {more}"
                "`add_extra_token: false` each is one sample, whose last token has no label, and "
                "one read; now samples run across two"
            )
    return found


def _all_have(source: CorpusFacts, length: int) -> bool:
    """Return whether all sequences of a corpus are known to have one length."""
    if source.tokens != source.sequences * length:
        return False
    if source.shards is not None:
        receipt = find_receipt(source.prefix)
        return receipt is not None and receipt.options.get("length_of_all") == length
    if is_url(source.prefix):  # its index was here for the plan only
        return False
    lengths = open_idx(source.prefix).lengths
    return bool((lengths[:EXAMINED_FIRST] == length).all() and (lengths == length).all())
