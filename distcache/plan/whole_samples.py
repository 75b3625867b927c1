"""Hints for corpora whose every sequence was packed to be one sample."""

from __future__ import annotations

from typing import Final

from distcache.corpus import CorpusFacts, open_idx
from distcache.corpus.receipt import find_receipt
from distcache.plan.config import Config
from distcache.plan.model import Plan
from distcache.storage.url import is_url

FIRST: Final = 4096  # sequences that are looked at before all of them


def whole_sample_hints(config: Config, plan: Plan) -> list[str]:
    """Return a hint for corpora of rows as long as a sample, or as a sample and its last label.

    Megatron's samples share one token with the next: they would run across such rows.
    """
    length = config.sequence_length
    if not config.add_extra_token or length == 1:
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
    return bool((lengths[:FIRST] == length).all() and (lengths == length).all())
