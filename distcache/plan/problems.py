"""What Megatron would loop on for ever or crash on, found before anything is built."""

from __future__ import annotations

from typing import Final

import numpy as np

from distcache.corpus import Corpus
from distcache.kernels import Mt19937
from distcache.plan.config import SPLITS, Config, Source
from distcache.plan.model import NARROW, SectionPlan
from distcache.plan.splits import normalise

__all__ = ["blend_problems", "corpus_problems", "partial_problem", "request_problem"]

MOST_CORPORA: Final = 32_766


def corpus_problems(corpus: Corpus) -> list[str]:
    """Return why Megatron cannot open a corpus that is sound by itself."""
    facts = corpus.facts
    if facts.sequences > NARROW:
        return [f"{facts.prefix}: has {facts.sequences} sequences, more than 2**31 - 1"]
    if facts.sequences == 0:
        return [f"{facts.prefix}: has no sequences"]
    if facts.bin_size == 0:
        return [f"{facts.prefix}: has no tokens, and an empty .bin cannot be mapped"]
    return []


def blend_problems(config: Config, split: str, sources: tuple[Source, ...]) -> list[str]:
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
        f"$.samples.{name}: null (one epoch) cannot be combined with weights; give a number, 0 for "
        "a split that is not used"
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
        f"{where}{source.path}: weight {source.weight} is 0 once normalised; Megatron refuses it, "
        "so drop the corpus from the blend"
        for source, weight in zip(sources, normalise(normalise(weights)), strict=True)
        if not weight > 0
    ]


def _too_many(where: str, sources: tuple[Source, ...]) -> list[str]:
    if len(sources) <= MOST_CORPORA:
        return []
    return [f"{where}{len(sources)} corpora in a blend, expected at most {MOST_CORPORA}"]


def request_problem(
    prefix: str, split: str, requested: int | None, epochs: int | None
) -> str | None:
    """Return why a section cannot have the samples that are asked of it."""
    if epochs is None:
        return (
            f"{prefix}: has no tokens in split {split}, so no number of epochs gives "
            f"{requested} samples and Megatron would never finish; change the split or drop "
            "the corpus"
        )
    if epochs > NARROW:
        return (
            f"{prefix}: split {split} needs {epochs} epochs for {requested} samples, more than "
            "2**31 - 1"
        )
    return None


def partial_problem(section: SectionPlan, corpus: Corpus) -> str | None:
    """Return why a last partial sample cannot be kept.

    Where it ends in an empty document, Megatron computes the offset -1 and its own check refuses
    the sample index. Only the first draw of the last shuffle decides which document comes last.
    """
    usable = section.size.epochs * section.tokens - int(section.cut.extra_token)
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
