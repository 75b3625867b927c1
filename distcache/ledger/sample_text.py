"""The text of traced samples, part by part."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distcache.corpus.idx import ITEM_TYPES, Idx
from distcache.corpus.view_bytes import open_tokens
from distcache.errors import ConfigError, CorpusError, NotReady
from distcache.extras import needing
from distcache.ledger.trace import Trace, TracedSamples


def texts_of(trace: Trace, traced: TracedSamples, tokenizer: str | None = None) -> list[str]:
    """Return the text of each part of samples, as their corpora's tokenizers decode it.

    Parameters
    ----------
    trace : Trace
        The split.
    traced : TracedSamples
        Samples of it.
    tokenizer : str or None
        A tokenizer as ``distcache ingest text --tokenizer`` takes it; by default the one that the
        receipt beside a corpus names.

    Raises
    ------
    ConfigError
        If no tokenizer is known, or its library is not installed.
    CorpusError, NotReady
        If tokens cannot be read.
    """
    with needing("the text of samples"):
        from distcache.ingest.tokenizers.find import tokenizer_of  # noqa: PLC0415  of an extra

        decoders = {}
        for corpus in np.unique(traced.corpora).tolist():
            prefix = trace.place(corpus)
            decoder = tokenizer_of(prefix, tokenizer, needed=True)
            if decoder is None:
                raise ConfigError(f"{prefix}: no receipt names a tokenizer; give --tokenizer FILE")
            decoders[corpus] = decoder
    corpora = np.repeat(traced.corpora, np.diff(traced.bounds)).tolist()
    parts = zip(
        corpora,
        traced.sequences.tolist(),
        traced.begins.tolist(),
        traced.ends.tolist(),
        strict=True,
    )
    return [
        decoders[corpus].decode(
            read_part(trace.place(corpus), trace.idx(corpus), sequence, begin, end).tolist()
        )
        for corpus, sequence, begin, end in parts
    ]


def read_part(prefix: str, idx: Idx, sequence: int, begin: int, end: int) -> NDArray[Any]:
    """Read tokens [begin, end) of a sequence of a corpus, from its `.bin` or a shard."""
    dtype = ITEM_TYPES[idx.type_code]
    first = int(idx.offsets[sequence]) + begin * dtype.itemsize
    tokens = np.empty(end - begin, dtype)
    if end > begin:
        try:
            with open_tokens(prefix, None) as read:
                read((np.array([first]), np.array([tokens.nbytes])), tokens.view(np.uint8))
        except FileNotFoundError as error:
            raise NotReady(f"{error.filename}: no such file") from error
        except OSError as error:
            raise CorpusError(f"{prefix}: cannot be read: {error}") from error
    return tokens
