"""Documents that a blend has twice, or that two splits share: a mistake that no array shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from distcache.corpus.receipt import find_receipt
from distcache.corpus.same_documents import Part, SameDocuments, same_documents
from distcache.errors import CorpusError, NotReady
from distcache.plan.model import Member, Plan

MAX_NAMED: Final = 3


def shared_document_warnings(plan: Plan) -> list[str]:
    """Return a sentence for corpora of a blend, or of two splits, that have documents in common.

    Parameters
    ----------
    plan : Plan
        Plan whose corpora are where it says, except those that are drawn no more.
    """
    # A corpus without files, which another cache describes, was not examined: nothing reads it.
    members = [member for member in plan.members if plan.sources[member.source].file_versions]
    parts = [
        Part(plan.sources[member.source], section.begin, section.end)
        for member in members
        for section in [plan.sections[member.section]]
    ]
    of_blend: list[str] = []
    of_splits: list[str] = []
    for found in _compared(parts):
        one, other = members[found.one], members[found.other]
        first, second = plan.sources[one.source].prefix, plan.sources[other.source].prefix
        count = f"{found.documents:,} of the {found.of_documents:,} documents of {second}"
        if one.split != other.split:
            of_splits.append(
                f"{count} in {other.split} are in {one.split}, too, as documents of {first}; "
                "select what only one of the splits shall have"
            )
        elif one.blend is not None and one.blend == other.blend and _are_drawn(plan, one, other):
            what = (
                "are in the blend more than once"
                if first == second
                else f"are the same as in {first}"
            )
            of_blend.append(
                f"{one.split}: {count} {what}: their samples come again for each entry, often one "
                "after the other; give one entry with the sum of the weights, or select what only "
                "one of the corpora has"
            )
    return _few([*dict.fromkeys(of_blend)]) + _few([*dict.fromkeys(of_splits)])


def _compared(parts: Sequence[Part]) -> list[SameDocuments]:
    """Compare parts; what cannot be read is no warning: whoever reads it will tell."""
    try:
        return list(same_documents(parts))
    except (OSError, CorpusError, NotReady):
        return []


def _are_drawn(plan: Plan, one: Member, other: Member) -> bool:
    """Return whether one of two corpora does not have what was left of the other in later phases.

    The views of `distcache rest` share no drawn document with the whole corpus, as long as no
    later phase draws the whole corpus.
    """
    phases = plan.blends[one.blend or 0].phases
    receipts = [find_receipt(plan.sources[member.source].prefix) for member in (one, other)]
    is_rest = [receipt is not None and receipt.kind == "rest" for receipt in receipts]
    if not phases or is_rest[0] == is_rest[1]:
        return True
    members = [member for member in plan.members if member.blend == one.blend]
    rest, whole = (
        members.index(member) for member in ((one, other) if is_rest[0] else (other, one))
    )
    ends = [phase.after for phase in phases]
    begun = next((n for n, after in enumerate(ends) if after[rest]), len(ends))
    before = ends[begun - 1][whole] if begun else 0
    return begun < len(ends) and ends[-1][whole] > before


def _few(warnings: list[str]) -> list[str]:
    """Return the first of many warnings of a kind, and how many more there are."""
    more = len(warnings) - MAX_NAMED
    return warnings if more <= 0 else [*warnings[:MAX_NAMED], f"{more} more such pairs of corpora"]
