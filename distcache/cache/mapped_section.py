"""The arrays of a section, and the index of its corpus, as the kernels take them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from distcache.cache.contents import Cache, Contents
from distcache.corpus import Idx, open_idx
from distcache.errors import CorpusError
from distcache.kernels import Section


def open_own_idx(cache: Cache, source: int, prefix: str) -> Idx:
    """Map the index of a corpus of a cache.

    Parameters
    ----------
    cache : Cache
        The open cache.
    source : int
        Row of the table of sources.
    prefix : str
        Prefix at which the index is.

    Raises
    ------
    NotReady
        If it does not exist.
    CorpusError
        If it is not the index that the cache was built from.
    """
    idx = open_idx(prefix)
    entry = cache.table("sources")[source]
    if (idx.size, len(idx.lengths)) != (int(entry["idx_size"]), int(entry["sequences"])):
        raise CorpusError(
            f"{idx.path}: is not the index that {cache.path} was built from; localize it again, or "
            "build it again"
        )
    return idx


def map_section(
    cache: Cache, row: int, idx: Idx, shards: NDArray[np.int64] | None = None
) -> Section:
    """Map the arrays of a section; those that a section of rows lacks are empty.

    Parameters
    ----------
    cache : Cache
        The open cache.
    row : int
        Row of the table of sections.
    idx : Idx
        Index of its corpus.
    shards : ndarray of int64, shape (shards,), or None
        Bytes of the `.bin` at which the corpus's shards begin; None if there is a `.bin`.

    Raises
    ------
    CorpusError
        If the tokens are no integers.
    """
    views = cache.arrays("sections", row)
    empty = {"sample_index": np.empty((0, 2), np.int32), "shuffle_index": np.empty(0, np.uint32)}
    arrays = empty | {name: cache.read(view) for name, view in views.items()}
    return Section(
        arrays["document_index"],
        arrays["sample_index"],
        arrays["shuffle_index"],
        idx.lengths,
        idx.offsets,
        idx.type_code,
        cache.add_extra_token,
        shards,
        multiple_of(cache),
    )


def multiple_of(cache: Contents) -> int:
    """Return the tokens to whose multiples each document of a sample is padded; 1 for none."""
    return int(cache.identity.get("packing", {}).get("multiple", 1))
