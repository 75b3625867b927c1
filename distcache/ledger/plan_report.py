"""What training would see, from a plan: what a report can say before anything is built."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from distcache.builder.blends import new_blender
from distcache.corpus.corpus import open_examined
from distcache.errors import ConfigError
from distcache.kernels import count_members, count_visits
from distcache.ledger.exposure import by_documents
from distcache.ledger.report import WINDOWS, share_of_weight, shares_of_windows, with_warnings
from distcache.ledger.report_document import (
    LENGTHS,
    VISITS,
    CorpusReport,
    OrderReport,
    Report,
)
from distcache.plan.model import Plan, SectionPlan

AT_ONCE = 1 << 20  # steps of a blend


def report_of_plan(plan: Plan, split: str = "train") -> Report:
    """Return the report of a plan; what only the arrays tell is None.

    Parameters
    ----------
    plan : Plan
        The plan, of corpora that are there.
    split : str
        "train", "valid" or "test".

    Raises
    ------
    ConfigError
        If the plan has no such split, several validation sets, or rows.
    CorpusError
        If an index is another one than when it was examined.
    """
    members = [member for member in plan.members if member.split == split]
    alone = bool(members) and members[0].blend is None
    if not members or (alone and len(members) > 1):
        raise ConfigError(f"the plan has no single data set of split {split!r}")
    sections = [plan.sections[member.section] for member in members]
    if any(section.rows for section in sections):
        raise ConfigError("a report is of tokens; the corpora consist of rows")
    blend = members[0].blend
    total = sections[0].size.samples if blend is None else plan.blends[blend].size
    if not total:
        raise ConfigError(f"the plan has no samples of split {split!r}")
    window = -(-total // WINDOWS)
    counts = np.zeros((-(-total // window), len(members)), np.int64)
    if blend is None:
        counts[:, 0] = window
        counts[-1] = total - window * (len(counts) - 1)
    succession = _blend(plan, blend, counts, window)
    taken = counts.sum(axis=0)
    weights = np.array([member.weight or np.nan for member in members], np.float64)
    corpora = tuple(
        _corpus(plan, section, int(taken[number]), total, share_of_weight(weights, number))
        for number, section in enumerate(sections)
    )
    length = sections[0].cut.sequence_length
    return with_warnings(
        Report(
            key=plan.key,
            split=split,
            order=sections[0].order,
            sequence_length=length,
            samples=total,
            of_samples=total,
            phases=1 if blend is None else max(len(plan.blends[blend].phases), 1),
            corpora=corpora,
            windows=shares_of_windows(counts, window),
            succession=succession,
            padding=1 - sum(one.trained_tokens for one in corpora) / (total * length),
        )
    )


def _blend(plan: Plan, number: int | None, counts: NDArray[np.int64], window: int) -> OrderReport:
    """Go through the steps of a blend, and count them in their windows."""
    if number is None:  # all samples are of one corpus
        return OrderReport(
            same=1.0,
            same_at_random=1.0,
            longest=int(counts.sum()),
            longest_corpus=0,
            longest_position=0,
        )
    blend = plan.blends[number]
    blender = new_blender(blend)
    step = max(AT_ONCE // window, 1) * window
    same = longest = begin = run_of = 0
    for first in range(0, blend.size, step):
        size = min(step, blend.size - first)
        members, samples = np.empty(size, np.int16), np.empty(size, np.int64)
        blender.next(members, samples)
        rows = counts[first // window :]
        here, run, place = count_members(members, window, rows)
        same += here
        if run > longest:  # runs across pieces are cut
            longest, begin, run_of = run, first + place, int(members[place])
    shares = counts.sum(axis=0) / blend.size
    return OrderReport(
        same=same / max(blend.size - 1, 1),
        same_at_random=float((shares**2).sum()),
        longest=longest,
        longest_corpus=run_of,
        longest_position=begin,
    )


def _corpus(
    plan: Plan, section: SectionPlan, taken: int, total: int, weight: float | None
) -> CorpusReport:
    facts = plan.sources[section.source]
    idx = open_examined(facts)
    lengths = idx.lengths[section.begin : section.end].astype(np.int64)
    (lengths,) = by_documents(idx, section.begin, section.end, lengths)
    classes = np.zeros(LENGTHS, np.int64)
    unseen, visits = np.zeros_like(lengths), np.zeros(VISITS, np.int64)
    tokens, _, _ = count_visits(unseen, lengths, visits, classes)
    idx.require_intact()
    row = section.cut.sequence_length
    filled: float = row
    if section.packed is not None:
        filled = sum(group.tokens for group in section.packed.groups) / max(section.packed.rows, 1)
    trained = round(taken * filled)
    return CorpusReport(
        corpus=facts.prefix,
        weight=weight,
        share=taken / total,
        samples=taken,
        samples_left=section.size.samples - taken,
        documents=len(lengths),
        tokens=tokens,
        trained_tokens=trained,
        epochs=trained / max(tokens, 1),
        lengths=tuple(classes.tolist()),
    )
