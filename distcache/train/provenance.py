"""Of which documents a sample consists, and its text."""

from __future__ import annotations

import msgspec
import numpy as np

from distcache.errors import CacheCorrupt, ConfigError
from distcache.train.open_files import OpenFiles


class SamplePart(msgspec.Struct, frozen=True):
    """Tokens of one document in a sample.

    Attributes
    ----------
    corpus : str
        The corpus without suffix, as the cache was built from it.
    document : int
        Number of the document in the corpus, from 0.
    begin : int
        The first of its tokens that are in the sample.
    tokens : int
        Number of tokens, with the one that a sample has beyond its length for labels.
    """

    corpus: str
    document: int
    begin: int
    tokens: int


def parts_of(opened: OpenFiles, section: int, source: int, sample: int) -> list[SamplePart]:
    """Return the parts of documents of a sample, in their order.

    Parameters
    ----------
    opened : OpenFiles
        The cache.
    section, source : int
        Rows of their tables.
    sample : int
        Number of the sample in the section.

    Raises
    ------
    CacheCorrupt
        If the arrays lead outside of one another.
    """
    cache, idx = opened.cache, opened.idx_of(source)
    arrays = {name: cache.read(view) for name, view in cache.arrays("sections", section).items()}
    try:
        place = int(arrays["shuffle_index"][sample])
        (first, begin), (last, end) = arrays["sample_index"][place : place + 2].tolist()
        sequences = arrays["document_index"][first : last + 1].tolist()
        if len(sequences) != last + 1 - first:
            raise IndexError
        found: list[SamplePart] = []
        for number, sequence in enumerate(sequences):
            start = begin if number == 0 else 0
            stop = int(idx.lengths[sequence])
            if number == len(sequences) - 1:
                stop = end + cache.add_extra_token
            if stop == start:
                continue
            document = int(np.searchsorted(idx.bounds, sequence, "right")) - 1
            before = int(idx.lengths[idx.bounds[document] : sequence].sum(dtype=np.int64))
            part = SamplePart(cache.prefixes[source], document, before + start, stop - start)
            found.append(part)
    except (IndexError, ValueError) as error:
        raise CacheCorrupt(
            f"{cache.path}: arrays of section {section} lead outside; see `distcache verify`"
        ) from error
    return found


def text_of(opened: OpenFiles, source: int, tokens: list[int], tokenizer: str | None) -> str:
    """Return the text of tokens, by a tokenizer that is named or that the corpus's receipt names.

    Raises
    ------
    ConfigError
        If neither is.
    """
    from distcache.ingest.tokenizers.find import tokenizer_of  # noqa: PLC0415  of an extra

    prefix = opened.shared_prefix(source)
    found = tokenizer_of(prefix, tokenizer, needed=True)
    if found is None:
        raise ConfigError(f"{prefix}: no receipt beside it names a tokenizer; give tokenizer=FILE")
    return found.decode(tokens)
