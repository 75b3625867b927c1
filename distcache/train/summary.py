"""What a cache has, for people: a line for each corpus of each split."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Final

import msgspec

from distcache.cache import Cache
from distcache.cache.split_members import SplitMembers, dataset_count
from distcache.storage.units import size_text
from distcache.train.open_files import OpenFiles

MAX_LINES: Final = 40  # of a summary
COLUMNS: Final = ("split", "corpus", "weight", "passes", "samples", "sequences", "tokens")


class CorpusUse(msgspec.Struct, frozen=True):
    """A corpus in a split.

    Attributes
    ----------
    split : str
        "train", "valid" or "test".
    corpus : str
        Path of the corpus without suffix, as the cache was built from it.
    weight : float or None
        Weight in the blend; None for a split of one corpus, or a blend by size.
    passes : int
        Number of passes over its sequences.
    samples : int
        Samples of it in the cache; a weighted blend draws a few less.
    sequences, tokens : int
        Sequences and tokens of one pass of the split.
    """

    split: str
    corpus: str
    weight: float | None
    passes: int
    samples: int
    sequences: int
    tokens: int


class Summary(msgspec.Struct, frozen=True):
    """What a cache has; ``str`` is a text, and notebooks show a table.

    Attributes
    ----------
    title : str
        Name of the file.
    facts : dict of str to str
        Key, samples of each split, tokens of a sample, size.
    corpora : tuple of CorpusUse
        Corpora of all splits.
    """

    title: str
    facts: dict[str, str]
    corpora: tuple[CorpusUse, ...]

    def __str__(self) -> str:
        wide = max(map(len, self.facts))
        lines = [self.title, *(f"{name:{wide}}  {text}" for name, text in self.facts.items()), ""]
        rows = [COLUMNS, *map(_cells, self.corpora[:MAX_LINES])]
        widths = [max(len(row[place]) for row in rows) for place in range(len(COLUMNS))]
        for row in rows:
            cells = [
                cell.ljust(width) if place < 2 else cell.rjust(width)  # names, then numbers
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  ".join(cells).rstrip())
        return "\n".join([*lines, *_more(self.corpora)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        facts = "".join(
            f"<tr><th>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>"
            for name, text in self.facts.items()
        )
        head = "".join(f"<th>{name}</th>" for name in COLUMNS)
        rows = "".join(
            f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in _cells(use))}</tr>"
            for use in self.corpora[:MAX_LINES]
        )
        more = "".join(f"<p>{line}</p>" for line in _more(self.corpora))
        return (
            f"<p>{html.escape(self.title)}</p><table>{facts}</table>"
            f"<table><tr>{head}</tr>{rows}</table>{more}"
        )


def _more(corpora: Sequence[CorpusUse]) -> list[str]:
    left = len(corpora) - MAX_LINES
    return [f"and {left:,} more: cache.corpora has all"] if left > 0 else []


def _cells(use: CorpusUse) -> tuple[str, ...]:
    numbers = (use.passes, use.samples, use.sequences, use.tokens)
    weight = "" if use.weight is None else f"{use.weight:g}"
    return use.split, use.corpus, weight, *(f"{number:,}" for number in numbers)


def corpora_of(cache: Cache) -> list[CorpusUse]:
    """Return what a cache has of each corpus, in the order of the splits."""
    sections, members = cache.table("sections"), cache.table("members")
    found = []
    for member in members:
        section = sections[int(member["section"])]
        weight = float(member["weight"])
        found.append(
            CorpusUse(
                member["split"].decode("ascii"),
                cache.prefixes[int(member["source"])],
                None if math.isnan(weight) else weight,
                int(section["epochs"]),
                int(section["samples"]),
                int(section["end"]) - int(section["begin"]),
                int(section["tokens"]),
            )
        )
    return found


def summary_of(opened: OpenFiles, title: str) -> Summary:
    """Return what a cache has."""
    cache = opened.cache
    samples = {
        split: sum(
            SplitMembers(opened.cache, split, n).size
            for n in range(dataset_count(opened.cache, split))
        )
        for split in cache.splits
    }
    facts = {
        "key": cache.key,
        "samples": ", ".join(f"{split} {count:,}" for split, count in samples.items()),
        "tokens of a sample": f"{cache.sequence_length:,}",
        "corpora": f"{len(cache.prefixes):,}",
        "size": size_text(cache.header.file_size),
    }
    return Summary(title, facts, tuple(corpora_of(cache)))
