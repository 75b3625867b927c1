"""A corpus as something to copy from, whatever its index looks like."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distcache.corpus.idx import ITEM_TYPES, Idx, open_idx

__all__ = ["Source", "open_source"]


@dataclass(frozen=True, eq=False)
class Source:
    """A sound corpus that is open.

    Attributes
    ----------
    prefix : str
        Its path without suffix.
    type_code : int
        Of its tokens.
    lengths : ndarray of int32, shape (sequences,)
        Tokens per sequence.
    bounds : ndarray of int64, shape (documents + 1,)
        Sequence numbers at which documents start, then the number of sequences.
    modes : ndarray of int8, shape (sequences,), or None
        Of multimodal data.
    nbytes : int
        Of the `.bin`.
    idx : Idx or None
        Whose arrays these are, if they are mapped.
    """

    prefix: str
    type_code: int
    lengths: NDArray[np.int32]
    bounds: NDArray[np.int64]
    modes: NDArray[np.int8] | None
    nbytes: int
    idx: Idx | None = None

    @property
    def tokens(self) -> int:
        """How many there are."""
        return self.nbytes // ITEM_TYPES[self.type_code].itemsize


def open_source(prefix: str, nbytes: int) -> Source:
    """Open a corpus that has been examined."""
    idx = open_idx(prefix)
    return Source(prefix, idx.type_code, idx.lengths, idx.bounds, idx.modes, nbytes, idx)
