"""Of which documents a sample consists, and its text."""

from __future__ import annotations

import msgspec
import numpy as np

from distcache.cache.mapped_section import map_section
from distcache.corpus.ancestry import documents_of
from distcache.errors import CacheCorrupt, ConfigError
from distcache.kernels import trace_parts
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
    try:
        _, sequences, begins, ends = trace_parts(
            [map_section(cache, section, idx)], np.zeros(1, np.int16), np.array([sample], np.int64)
        )
    except IndexError as error:
        raise CacheCorrupt(
            f"{cache.path}: arrays of section {section} lead outside; see `distcache verify`"
        ) from error
    documents = documents_of(idx, sequences.astype(np.int64))
    found = []
    for document, sequence, begin, end in zip(
        documents.tolist(), sequences.tolist(), begins.tolist(), ends.tolist(), strict=True
    ):
        before = int(idx.lengths[idx.bounds[document] : sequence].sum(dtype=np.int64))
        found.append(SamplePart(cache.prefixes[source], document, before + begin, end - begin))
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
