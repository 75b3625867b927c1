"""Rows that are packed with whole documents: how many there are, from the lengths alone.

The sequences of a section are packed in groups of fixed ranges, so that ranks can take different
groups, and so that the rows of a group are the same number in every pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from distcache.corpus import CorpusFacts
from distcache.corpus.corpus import open_examined
from distcache.kernels import count_packed
from distcache.plan.config import SPLITS, Config, Pack
from distcache.plan.sizes import WHOLE, sequence_range, split_matrix

GROUP: Final = 1 << 26  # sequences
VERSION: Final = 2  # tails are placed first


class PackingRules(msgspec.Struct, frozen=True, omit_defaults=True):
    """How documents are packed into rows; part of keys, without what is the default."""

    row_length: int  # tokens of a row
    most_documents: int  # documents of a row, at most; 0 is any number
    cuts_longer: bool  # whether documents longer than a row are cut, or left out
    version: int  # of the order in which documents are placed
    multiple: int = 1  # tokens to whose multiples each document is padded


class PackedGroup(msgspec.Struct, frozen=True):
    """Sequences that are packed together, and what they give in each pass."""

    # the range of sequences
    begin: int
    end: int
    rows: int
    documents: int  # sequences that the rows have
    tokens: int  # tokens of these
    # sequences that are longer than a row, and cut; that are longer, and left out; without tokens
    cut: int
    left_out: int
    empty: int


class Packed(msgspec.Struct, frozen=True):
    """How a section is packed."""

    rules: PackingRules
    groups: tuple[PackedGroup, ...]

    @property
    def rows(self) -> int:
        """Rows of a pass."""
        return sum(group.rows for group in self.groups)

    @property
    def documents(self) -> int:
        """Sequences of a pass."""
        return sum(group.documents for group in self.groups)


GroupKey = tuple[str, int, int]
"""Prefix of a corpus, and the range of sequences of a group."""


def rules_of(config: Config) -> PackingRules:
    """Return how a configuration packs."""
    pack = config.packing or Pack()
    return PackingRules(
        config.sequence_length,
        pack.documents or 0,
        pack.longer == "cut",
        VERSION,
        pack.pad_to_multiple_of,
    )


def group_ranges(begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the sequences of each group of a range."""
    for first in range(begin, end, GROUP):
        yield first, min(first + GROUP, end)


def groups_of(config: Config, facts: Mapping[str, CorpusFacts]) -> list[GroupKey]:
    """Return the groups of all sections of a configuration, each once.

    Parameters
    ----------
    config : Config
        A sound configuration.
    facts : mapping of str to CorpusFacts
        Facts of its corpora, by path prefix.
    """
    matrix = None if config.split is None else split_matrix(config.split)
    found: dict[GroupKey, None] = {}
    for split, blend in config.blends().items():
        share = WHOLE if matrix is None else matrix[SPLITS.index(split)]
        for prefix in dict.fromkeys(source.path for source in blend if share is not None):
            assert share is not None, "others were left out"
            sequences = 0 if facts[prefix].rows else facts[prefix].sequences
            for begin, end in group_ranges(*sequence_range(share, sequences)):
                found[prefix, begin, end] = None
    return list(found)


def count_group(facts: CorpusFacts, begin: int, end: int, rules: PackingRules) -> PackedGroup:
    """Count the rows of a group.

    Parameters
    ----------
    facts : CorpusFacts
        Facts of the corpus.
    begin, end : int
        Range of sequences.
    rules : PackingRules
        Rules of the packing.

    Raises
    ------
    CorpusError
        If the index is not the one any more that was examined.
    """
    idx = open_examined(facts)
    counts = count_packed(
        idx.lengths[begin:end],
        rules.row_length,
        rules.most_documents,
        rules.cuts_longer,
        rules.multiple,
    )
    idx.require_intact()
    return PackedGroup(
        begin,
        end,
        counts.rows,
        counts.documents,
        counts.tokens,
        counts.cut,
        counts.left_out,
        counts.empty,
    )


def packed_of(
    facts: CorpusFacts,
    begin: int,
    end: int,
    rules: PackingRules,
    groups: Mapping[GroupKey, PackedGroup],
) -> Packed:
    """Return how a range of sequences is packed; groups that were not counted are counted here."""
    found = (
        groups.get((facts.prefix, *bounds)) or count_group(facts, *bounds, rules)
        for bounds in group_ranges(begin, end)
    )
    return Packed(rules, tuple(found))


class PackingFacts(msgspec.Struct, frozen=True):
    """What one pass of a packed section is like."""

    samples: int
    fill: float  # share of the samples' tokens that are of documents
    padding: int  # tokens of the samples that are padding
    documents_per_sample: float  # documents that begin in a sample, in the mean
    # documents that are longer than a sample, and cut; longer, and left out; without tokens
    cut: int
    left_out: int
    empty: int


def packing_facts(packed: Packed) -> PackingFacts:
    """Return what one pass of a packed section is like."""
    samples, tokens = packed.rows, sum(group.tokens for group in packed.groups)
    size = samples * packed.rules.row_length
    return PackingFacts(
        samples=samples,
        fill=tokens / size if size else 0.0,
        padding=size - tokens,
        documents_per_sample=packed.documents / samples if samples else 0.0,
        cut=sum(group.cut for group in packed.groups),
        left_out=sum(group.left_out for group in packed.groups),
        empty=sum(group.empty for group in packed.groups),
    )
