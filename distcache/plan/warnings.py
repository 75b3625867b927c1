"""Requests that Megatron carries out, and that hardly anybody means; pure."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from distcache.plan.blend_state import likely_taken
from distcache.plan.config import SPLITS, Config
from distcache.plan.model import BlendPlan, Plan
from distcache.plan.splits import split_matrix

__all__ = ["plan_warnings"]

MANY_EPOCHS: Final = 1000
MOST_NAMED: Final = 3


def plan_warnings(config: Config, plan: Plan) -> list[str]:
    """Return a sentence for everything that looks like a mistake.

    Parameters
    ----------
    config : Config
        What is asked for.
    plan : Plan
        Made of it.
    """
    return [*_odd_split(config), *_repeated(plan), *_missing_splits(config), *_never_drawn(plan)]


def _odd_split(config: Config) -> list[str]:
    if config.split is None or re.fullmatch(r"[\d.,/\s]*", config.split):
        return []
    shares = ", ".join(f"{float(share):g}" for share in re.findall(r"[.0-9]+", config.split))
    return [
        f"$.split: {config.split!r} is read as {shares}, as Megatron does: no other signs count"
    ]


def _repeated(plan: Plan) -> list[str]:
    many = [section for section in plan.sections if section.size.epochs > MANY_EPOCHS]
    if not many:
        return []
    most = max(many, key=lambda section: section.size.epochs)
    others = f"; so are {len(many) - 1} more" if len(many) > 1 else ""
    return [
        f"{plan.sources[most.source].prefix}: is repeated for {most.size.epochs:,} epochs of "
        f"{most.tokens:,} tokens{others}; are samples and weights as you mean them?"
    ]


def _missing_splits(config: Config) -> list[str]:
    """Find samples that are asked of a split without sequences, and never drawn."""
    if config.split is None or config.samples is None:
        return []
    shares = zip(SPLITS, split_matrix(config.split), strict=True)
    return [
        f"$.samples.{name}: {config.samples_of(name)} samples are asked for, but split "
        f"{config.split!r} gives {name} nothing, so there will be none"
        for name, share in shares
        if share is None and config.samples_of(name)
    ]


def _never_drawn(plan: Plan) -> list[str]:
    """Find corpora whose turn does not come in their blend."""
    found = []
    for index, blend in enumerate(plan.blends):
        if not blend.size:
            continue
        sources = [member.source for member in plan.members if member.blend == index]
        counts = zip(sources, _likely(blend), strict=True)
        idle = [plan.sources[source].prefix for source, count in counts if not count]
        if idle:
            more = f" and {len(idle) - MOST_NAMED} more" if len(idle) > MOST_NAMED else ""
            found.append(
                f"{blend.split}: {', '.join(idle[:MOST_NAMED])}{more} will most likely give no "
                f"sample of {blend.size:,}: the weights are too small"
            )
    return found


def _likely(blend: BlendPlan) -> list[int]:
    if blend.exhaustive:
        return [1] * len(blend.sizes)
    weights = np.array(blend.weights, np.float64)
    taken: list[int] = likely_taken(weights, np.full(len(weights), 2**62), blend.size).tolist()
    return taken
