"""What the phases of a plan take of each corpus, and what looks like a mistake in them."""

from __future__ import annotations

import itertools
from typing import Final

import msgspec

from distcache.plan.config import Config
from distcache.plan.model import Plan

ROUNDED_SILENTLY: Final = 1e-3  # of the tokens of a phase


class CorpusShare(msgspec.Struct, frozen=True):
    """What a phase takes of a corpus."""

    corpus: str
    share: float  # share of the samples of the phase
    samples: int  # samples that are taken at the end of the phase, since the start
    passes: float  # the same, in passes over the corpus


class PhaseFacts(msgspec.Struct, frozen=True):
    """A phase of training."""

    begin: int  # first sample
    samples: int
    corpora: tuple[CorpusShare, ...]


def phase_facts(plan: Plan) -> list[PhaseFacts]:
    """Return the phases of a plan, in their order; none if the weights never change."""
    found = []
    for index, blend in enumerate(plan.blends):
        members = [member for member in plan.members if member.blend == index]
        for phase in blend.phases:
            shares = []
            for place, member in enumerate(members):
                size = plan.sections[member.section].size
                taken = phase.after[place]
                shares.append(
                    CorpusShare(
                        corpus=plan.sources[member.source].prefix,
                        share=(taken - phase.before[place]) / max(phase.samples, 1),
                        samples=taken,
                        passes=taken * size.passes / size.samples if size.samples else 0.0,
                    )
                )
            found.append(PhaseFacts(phase.begin, phase.samples, tuple(shares)))
    return found


def phase_warnings(config: Config, plan: Plan) -> list[str]:
    """Return which corpora a phase begins to repeat, and which phases begin within a batch."""
    facts, found = phase_facts(plan), []
    for number, (before, now) in enumerate(itertools.pairwise(facts), 1):
        found += [
            f"$.phases[{number}]: {own.corpus} is used up in it, and repeated: {own.passes:.2f} "
            "passes at its end"
            for earlier, own in zip(before.corpora, now.corpora, strict=True)
            if earlier.passes <= 1 < own.passes
        ]
    # There are no facts of a split without sequences, or of one corpus, which has no blend.
    for number, phase in enumerate(config.phases or ()):
        length, tokens = config.sequence_length, phase.tokens or 0
        samples = -(-tokens // length)
        if samples * length - tokens > tokens * ROUNDED_SILENTLY:
            found.append(
                f"$.phases[{number}].tokens: {tokens} are rounded up to {samples} whole samples, "
                f"of {samples * length} tokens"
            )
    for number, (phase, own) in enumerate(zip(config.phases or (), facts, strict=False)):
        if phase.batch_size is not None and own.begin % phase.batch_size:
            found.append(
                f"$.phases[{number}]: begins at sample {own.begin}, within a batch of "
                f"{phase.batch_size}"
            )
    return found
