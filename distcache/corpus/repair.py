"""Sound corpora of those whose offsets overflowed, as some merges write them.

Lengths say exactly what the `.bin` has, and offsets follow from them. Only a `.bin` of the corpus's
own is repaired: of a view, the `.bin` is a link, and offsets lead anywhere.
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distcache.corpus.corpus import CopySource
from distcache.corpus.idx import bin_path, idx_path, open_idx
from distcache.corpus.mds.shard_table import has_table
from distcache.errors import CorpusError, DistcacheError, NotReady

WRAP_BYTES: Final = 2**32  # bytes after which a sum in 32 bits begins again


class Repaired(NamedTuple):
    """A corpus as its lengths say it is."""

    source: CopySource  # the corpus; its tokens are the running sum of its lengths
    wrong: int  # number of offsets that were repaired


def is_repairable(prefix: str) -> bool:
    """Return whether `open_damaged` would repair a corpus."""
    try:
        return open_damaged(prefix).wrong > 0
    except (DistcacheError, OSError):
        return False


def open_damaged(prefix: str) -> Repaired:
    """Read a corpus with offsets that overflowed, and make them again of its lengths.

    Parameters
    ----------
    prefix : str
        Path of the corpus without suffix. Holds the offsets of its index in memory.

    Raises
    ------
    NotReady
        If a file does not exist.
    CorpusError
        If its `.bin` is not its own, or anything but offsets is wrong.
    """
    path, tokens_path = idx_path(prefix), bin_path(prefix)
    if has_table(prefix):
        raise CorpusError(f"{path}: is an index of shards: index them again")
    if os.path.islink(tokens_path):
        raise CorpusError(f"{tokens_path}: is a link: the corpus is a view, whose offsets are free")
    idx = open_idx(prefix)
    lengths, bounds = idx.lengths, idx.bounds
    if len(lengths) and int(lengths.min()) < 0:
        raise CorpusError(f"{path}: has negative lengths, which cannot be repaired")
    if not len(bounds) or bounds[0] or bounds[-1] != len(lengths) or (np.diff(bounds) < 0).any():
        raise CorpusError(f"{path}: its document boundaries are wrong, which cannot be repaired")
    size = int(lengths.sum(dtype=np.int64)) * idx.item_size
    try:
        bin_size = os.stat(tokens_path).st_size
    except FileNotFoundError as error:
        raise NotReady(f"{tokens_path}: no such file") from error
    if bin_size != size:
        raise CorpusError(
            f"{path}: its lengths are {size} bytes, and the .bin has {bin_size}: tokens are lost, "
            "or are those of another corpus"
        )
    wrong = _running_sum(lengths, idx.item_size) - idx.offsets
    if (wrong % WRAP_BYTES).any():
        raise CorpusError(
            f"{path}: its offsets did not overflow: they are no running sum of its lengths modulo "
            "2**32, so that nothing says where its sequences are"
        )
    source = CopySource(prefix, idx.type_code, lengths, bounds, idx.modes, size)
    return Repaired(source, int(np.count_nonzero(wrong)))


def _running_sum(lengths: NDArray[np.int32], item: int) -> NDArray[np.int64]:
    ends = np.cumsum(lengths, dtype=np.int64) * item
    return np.concatenate([np.zeros(1, np.int64), ends])[: len(lengths)]
