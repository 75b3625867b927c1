"""Corpora of a split that have documents in common, of which each counts its own alone."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from distcache.cache.contents import facts_of
from distcache.corpus import bin_path, idx_path
from distcache.corpus.mds.shard_table import has_table
from distcache.corpus.same_documents import Part, same_documents
from distcache.errors import CorpusError, NotReady
from distcache.ledger.megatron_files import MegatronFiles
from distcache.ledger.trace import Trace

MAX_SAID: Final = 3


class SharedCorpora(NamedTuple):
    """Two corpora of a split."""

    # sources of the cache
    one: int
    other: int
    message: str  # how many documents of the other one are documents of the first, too


def shared_corpora(trace: Trace) -> list[SharedCorpora]:
    """Return the pairs of corpora that have documents in common, as far as their files show it.

    Parameters
    ----------
    trace : Trace
        The split, of a cache; of Megatron's directories nothing is known.
    """
    if isinstance(trace.cache, MegatronFiles):
        return []
    sections = trace.cache.table("sections")
    pairs = [(section, source) for section, source in trace.pairs if _is_here(trace.place(source))]
    sources = [source for _, source in pairs]
    parts = [
        Part(facts_of(trace.cache, source, trace.place(source)), int(own["begin"]), int(own["end"]))
        for section, source in pairs
        for own in [sections[section]]
    ]
    try:
        found = list(same_documents(parts))
    except (CorpusError, NotReady, OSError):  # changed since, or not to be read
        return []
    named: dict[tuple[int, int], SharedCorpora] = {}
    for pair in found:
        one, other = sources[pair.one], sources[pair.other]
        first, second = trace.corpora[one], trace.corpora[other]
        count = f"{pair.documents:,} of the {pair.of_documents:,} documents of {second}"
        what = (
            "are in the blend more than once" if one == other else f"are documents of {first}, too"
        )
        named.setdefault((one, other), SharedCorpora(one, other, f"{count} {what}"))
    return list(named.values())


def _is_here(prefix: str) -> bool:
    """Return whether the files of a corpus are here; others are compared with nothing."""
    return Path(idx_path(prefix)).exists() and (
        Path(bin_path(prefix)).exists() or has_table(prefix)
    )
