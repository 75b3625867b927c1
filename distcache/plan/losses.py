"""What share of the loss each corpus has, where some have loss masks.

Weights count samples: of chats that have a weight of 0.3, and a loss on a fifth of their tokens,
comes a much smaller share of what is learned.
"""

from __future__ import annotations

from typing import Final

import msgspec

from distcache.corpus import CorpusFacts
from distcache.plan.model import Plan

MANY_SILENT: Final = 0.1  # share of sequences


class LossShare(msgspec.Struct, frozen=True):
    """What training learns of a corpus."""

    corpus: str  # prefix
    tokens_with_loss: float  # share of its tokens
    samples: float  # share of the samples of training
    loss: float  # share of the tokens with a loss, of all samples of training


def loss_shares(plan: Plan) -> list[LossShare]:
    """Return the shares of the corpora of training; none if no corpus has a loss mask."""
    if not any(facts.loss for facts in plan.sources):
        return []
    members = [member for member in plan.members if member.split == "train"]
    weights = [member.weight or plan.sections[member.section].size.samples for member in members]
    corpora = [plan.sources[member.source] for member in members]
    parts = [weight * _learned(facts) for weight, facts in zip(weights, corpora, strict=True)]
    total, learned = sum(weights) or 1.0, sum(parts) or 1.0
    return [
        LossShare(facts.prefix, _learned(facts), weight / total, part / learned)
        for facts, weight, part in zip(corpora, weights, parts, strict=True)
    ]


def _learned(facts: CorpusFacts) -> float:
    """Return the share of a corpus's tokens that have a loss."""
    return 1.0 if facts.loss is None else facts.loss.tokens / max(facts.tokens, 1)


def silent_warnings(plan: Plan) -> list[str]:
    """Name the corpora of whose sequences many have no loss at all."""
    return [
        f"{facts.prefix}: {facts.loss.silent:,} of {facts.sequences:,} sequences have no token "
        "with a loss: nothing is learned of them"
        for facts in plan.sources
        if facts.loss is not None and facts.loss.silent > MANY_SILENT * facts.sequences
    ]
