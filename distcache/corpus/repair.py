"""Sound corpora of damaged ones whose lengths and tokens are right.

Faulty merges and conversions leave indices with offsets that overflowed, without document
boundaries, or with the code of another token type, and `.bin` files with a tail. Where the lengths
say exactly what the `.bin` has, all else follows from them.
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distcache.corpus.corpus import CopySource
from distcache.corpus.idx import (
    HEADER,
    HEADER_SIZE,
    ITEM_TYPES,
    MAGIC,
    POINTER,
    bin_path,
    idx_path,
    require_no_pointer,
)
from distcache.corpus.mds.shard_table import has_table
from distcache.errors import CorpusError, DistcacheError, NotReady
from distcache.storage.files import open_sized, read_range

CODE_OF_SIZE: Final = {1: 1, 2: 8, 4: 4, 8: 5}  # what tokenizers write: u8, u16, i32, i64


class Repaired(NamedTuple):
    """A corpus as its lengths and its tokens say it is."""

    source: CopySource  # the corpus; its tokens are the running sum of its lengths
    repairs: tuple[str, ...]  # faults that were repaired; empty if there was none


def is_repairable(prefix: str) -> tuple[str, ...]:
    """Return what `open_damaged` would repair; nothing if it cannot."""
    try:
        return open_damaged(prefix).repairs
    except (DistcacheError, OSError):
        return ()


def open_damaged(prefix: str) -> Repaired:
    """Read the lengths of a damaged corpus, and make the rest of its index of them.

    Parameters
    ----------
    prefix : str
        Path of the corpus without suffix. Holds the arrays of its index in memory.

    Raises
    ------
    NotReady
        If a file does not exist.
    CorpusError
        If the lengths cannot be read, or do not say what the `.bin` has.
    """
    path = idx_path(prefix)
    if has_table(prefix):
        raise CorpusError(f"{path}: is an index of shards: index them again")
    try:
        descriptor, size = open_sized(path)
        try:
            content = read_range(descriptor, 0, size)
        finally:
            os.close(descriptor)
        descriptor, bin_size = open_sized(bin_path(prefix))
        try:
            begin = read_range(descriptor, 0, min(POINTER, bin_size))
        finally:
            os.close(descriptor)
    except FileNotFoundError as error:
        raise NotReady(f"{error.filename or path}: no such file") from error
    except (OSError, EOFError) as error:
        name = getattr(error, "filename", None) or path
        raise CorpusError(f"{name}: cannot be read: {error}") from error
    require_no_pointer(path, content)
    require_no_pointer(bin_path(prefix), begin)
    if len(content) < HEADER_SIZE or not content.startswith(MAGIC):
        raise CorpusError(f"{path}: has no header of an index, so that nothing says its lengths")
    _, _, code, sequences, entries = HEADER.unpack(content[:HEADER_SIZE])
    if HEADER_SIZE + 4 * sequences > len(content):
        raise CorpusError(f"{path}: ends within the lengths of its {sequences} sequences")
    lengths = np.frombuffer(content, "<i4", sequences, HEADER_SIZE)
    if sequences and int(lengths.min()) < 0:
        raise CorpusError(f"{path}: has negative lengths, which cannot be repaired")
    tokens = int(lengths.sum(dtype=np.int64))
    offsets = _array(content, HEADER_SIZE + 4 * sequences, sequences)
    true_code, repairs = _type_code(path, code, lengths, offsets, tokens, bin_size)
    item = ITEM_TYPES[true_code].itemsize
    if offsets is None or not np.array_equal(offsets, _running_sum(lengths, item)):
        repairs.append("offsets that are not the running sum of lengths")
    bounds = _array(content, HEADER_SIZE + 12 * sequences, entries)
    if bounds is None or not _are_bounds(bounds, sequences):
        repairs.append("document boundaries: each sequence is a document now")
        bounds = np.arange(sequences + 1)
    source = CopySource(prefix, true_code, lengths, bounds, None, tokens * item)
    return Repaired(source, tuple(repairs))


def _array(content: bytes, begin: int, count: int) -> NDArray[np.int64] | None:
    """Return an array of 64-bit integers, or None if the file ends before its end."""
    if not 0 <= count <= (len(content) - begin) // 8:
        return None
    return np.frombuffer(content, "<i8", count, begin)


def _running_sum(lengths: NDArray[np.int32], item: int) -> NDArray[np.int64]:
    ends = np.cumsum(lengths, dtype=np.int64) * item
    return np.concatenate([np.zeros(1, np.int64), ends])[: len(lengths)]


def _are_bounds(bounds: NDArray[np.int64], sequences: int) -> bool:
    if not len(bounds) or bounds[0] != 0 or bounds[-1] != sequences:
        return False
    return not bool((np.diff(bounds) < 0).any())


def _type_code(
    path: str,
    code: int,
    lengths: NDArray[np.int32],
    offsets: NDArray[np.int64] | None,
    tokens: int,
    bin_size: int,
) -> tuple[int, list[str]]:
    """Return the code of the token type that the `.bin` has, and what is repaired of it.

    Raises
    ------
    CorpusError
        If no type makes the `.bin` as long as it is.
    """
    stated = ITEM_TYPES[code].itemsize if code in ITEM_TYPES else None
    if stated is not None and tokens * stated == bin_size:
        return code, []
    if stated is not None and tokens * stated < bin_size:
        sums = _running_sum(lengths, stated)
        if offsets is not None and len(offsets) and np.array_equal(offsets, sums):
            tail = bin_size - tokens * stated
            return code, [f"a tail of {tail} bytes of the .bin, which no sequence has"]
    item = bin_size // tokens if tokens and bin_size % tokens == 0 else 0
    if item in CODE_OF_SIZE:
        found = CODE_OF_SIZE[item]
        return found, [f"token type code {code}: the .bin has {item} bytes for each token"]
    raise CorpusError(
        f"{path}: its lengths are {tokens} tokens, and the .bin has {bin_size} bytes, which fit no "
        "token type: tokens are lost, or are those of another corpus"
    )
