"""Some tokens of each corpus, to find what can be no token whatever the vocabulary."""

from __future__ import annotations

import os
from typing import Final

import numpy as np

from distcache.corpus.ancestry import documents_of
from distcache.corpus.corpus import CorpusFacts
from distcache.corpus.idx import ITEM_TYPES, bin_path, open_idx
from distcache.storage.files import closing_fd, open_regular
from distcache.storage.url import is_url

MOST_TOKENS: Final = 1024  # tokens of each sequence that is looked at


def negative_token(facts: CorpusFacts, sequences: int) -> str | None:
    """Return what is wrong with tokens of a corpus, of which none may be negative.

    Data that packs a mask into the highest bit, a damaged `.bin`, and a header with another type
    look so. Objects, and shards, are not looked at.

    Parameters
    ----------
    facts : CorpusFacts
        Facts of the corpus, which was examined.
    sequences : int
        Number of sequences that are looked at, all over the corpus.

    Raises
    ------
    OSError
        If the `.bin` cannot be read.
    """
    kind = ITEM_TYPES[facts.type_code]
    no_sequences = not facts.sequences
    if kind.kind != "i" or facts.shards is not None or is_url(facts.prefix) or no_sequences:
        return None
    idx = open_idx(facts.prefix)
    chosen = np.unique(np.linspace(0, facts.sequences - 1, sequences).astype(np.int64))
    path = bin_path(facts.prefix)
    # The `.bin` of a view is a link to that of its corpus.
    with closing_fd(open_regular(os.path.realpath(path))) as descriptor:
        for sequence in chosen.tolist():
            count = min(int(idx.lengths[sequence]), MOST_TOKENS)
            content = os.pread(descriptor, count * kind.itemsize, int(idx.offsets[sequence]))
            tokens = np.frombuffer(content[: len(content) // kind.itemsize * kind.itemsize], kind)
            wrong = np.flatnonzero(tokens < 0)
            if len(wrong):
                document = int(documents_of(idx, np.array([sequence]))[0])
                return (
                    f"document {document} has token {tokens[wrong[0]]}, and no token is negative: "
                    "the data has more than tokens, or another type"
                )
    return None
