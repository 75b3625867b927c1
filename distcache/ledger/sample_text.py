"""The text of traced samples, part by part."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distcache.corpus.idx import ITEM_TYPES, Idx, bin_path
from distcache.corpus.mds.shard_table import has_table, read_table, shards_at
from distcache.corpus.view_bytes import open_tokens
from distcache.errors import ConfigError, CorpusError, NotReady
from distcache.extras import needing
from distcache.ledger.trace import Trace, TracedSamples
from distcache.storage.files import closing_fd, open_regular, read_range


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
    size = (end - begin) * dtype.itemsize
    path, base = bin_path(prefix), 0
    try:
        if has_table(prefix):
            table = read_table(prefix)
            shard = int(shards_at(table.rows["base"].astype(np.int64), first))
            path, base = table.path_of(shard), int(table.rows["base"][shard])
            if table.rows["codec"][shard]:
                return _read_compressed(prefix, first, size).view(dtype)
        with closing_fd(open_regular(path)) as descriptor:
            data = read_range(descriptor, first - base, first - base + size)
    except FileNotFoundError as error:
        raise NotReady(f"{path}: no such file") from error
    except (OSError, EOFError) as error:
        raise CorpusError(f"{path}: cannot be read: {error}") from error
    return np.frombuffer(data, dtype)


def _read_compressed(prefix: str, first: int, size: int) -> NDArray[np.uint8]:
    """Read bytes of a compressed shard, which is unpacked for them."""
    data = np.empty(size, np.uint8)
    if size:
        with open_tokens(prefix, None) as read:
            read((np.array([first]), np.array([size])), data)
    return data
