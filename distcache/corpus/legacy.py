r"""Legacy `.idx` files (TNTIDX), which fairseq and early Megatrons wrote, cached or lazy.

All little endian: the magic ``TNTIDX\0\0``, u64 version 1, u64 code of the token type, u64 bytes
per token, u64 sequences, u64 sizes, u64 document entries; then int64 arrays: the dimension of each
sequence as a running sum (sequences + 1), where each begins in tokens (sequences + 1), the sizes,
and the document boundaries. The cached and the lazy reader of old read the same file.
"""

from __future__ import annotations

import os
import struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from distcache.corpus.corpus import CopySource
from distcache.corpus.idx import LEGACY_MAGIC, bin_path, code_of, idx_path
from distcache.errors import CorpusError, NotReady
from distcache.storage.files import open_regular, open_sized, read_range

HEADER: Final = struct.Struct("<8sQQQQQQ")
VERSION: Final = 1
# By code and bytes per token. Code 6 was "float", which some writers took for 4 bytes.
TYPES: Final = {
    (1, 1): "u1",
    (2, 1): "i1",
    (3, 2): "<i2",
    (4, 4): "<i4",
    (5, 8): "<i8",
    (6, 4): "<f4",
    (6, 8): "<f8",
    (7, 8): "<f8",
    (8, 2): "<u2",
}


def is_legacy(prefix: str) -> bool:
    """Return whether the `.idx` of a corpus is a legacy one."""
    try:
        with open(open_regular(idx_path(prefix)), "rb") as stream:
            return stream.read(len(LEGACY_MAGIC)) == LEGACY_MAGIC
    except OSError:
        return False


def open_legacy(prefix: str) -> CopySource:
    """Read a legacy corpus, and check that it is sound. Holds its whole index in memory.

    Raises
    ------
    NotReady
        If a file does not exist.
    CorpusError
        If it is not a legacy corpus, or not a sound one.
    """
    path = idx_path(prefix)
    try:
        descriptor, size = open_sized(path)
    except FileNotFoundError as error:
        raise NotReady(f"{path}: no such file") from error
    except OSError as error:
        raise CorpusError(f"{path}: cannot be opened: {error.strerror}") from error
    try:
        if size < HEADER.size:
            raise CorpusError(f"{path}: has {size} bytes, expected {HEADER.size} of a header")
        dtype, counts = _parse_header(path, read_range(descriptor, 0, HEADER.size), size)
        content = np.frombuffer(read_range(descriptor, HEADER.size, size), "<i8")
    except (OSError, EOFError) as error:
        raise CorpusError(f"{path}: cannot be read: {error}") from error
    finally:
        os.close(descriptor)
    dimensions, offsets, sizes, bounds = np.split(content, np.cumsum(counts)[:-1])
    bounds = _close(bounds, len(sizes))
    problems = _problems(dimensions, offsets, sizes, bounds)
    nbytes = int(sizes.sum()) * dtype.itemsize
    problems += _bin_problems(prefix, nbytes) if not problems else []
    if problems:
        raise CorpusError(*(f"{path}: {problem}" for problem in problems))
    return CopySource(prefix, code_of(dtype), sizes.astype(np.int32), bounds, None, nbytes)


def _parse_header(path: str, header: bytes, size: int) -> tuple[np.dtype[np.generic], list[int]]:
    magic, version, code, item_size, sequences, sizes, entries = HEADER.unpack(header)
    if magic != LEGACY_MAGIC:
        raise CorpusError(f"{path}: magic is {magic!r}, expected {LEGACY_MAGIC!r}")
    if version != VERSION:
        raise CorpusError(f"{path}: version is {version}, expected {VERSION}")
    if (code, item_size) not in TYPES:
        raise CorpusError(f"{path}: token type code {code} of {item_size} bytes is not known")
    expected = HEADER.size + 8 * (2 * (sequences + 1) + sizes + entries)
    if size != expected:
        raise CorpusError(f"{path}: has {size} bytes, expected {expected} by its counts")
    return np.dtype(TYPES[code, item_size]), [sequences + 1, sequences + 1, sizes, entries]


def _close(bounds: NDArray[np.int64], sequences: int) -> NDArray[np.int64]:
    """Add the end of the last document, if the writer left it out."""
    if len(bounds) and bounds[-1] < sequences:
        return np.append(bounds, np.int64(sequences))
    return bounds


def _problems(
    dimensions: NDArray[np.int64],
    offsets: NDArray[np.int64],
    sizes: NDArray[np.int64],
    bounds: NDArray[np.int64],
) -> list[str]:
    if not np.array_equal(dimensions, np.arange(len(sizes) + 1)):
        return ["has sequences of other than one dimension"]
    problems = []
    if len(sizes) and (sizes.min() < 0 or sizes.max() > np.iinfo(np.int32).max):
        problems.append("has lengths below 0, or of 2**31 and more")
    elif not np.array_equal(offsets, np.concatenate([[0], np.cumsum(sizes)])):
        problems.append("has offsets that are not the running sum of lengths")
    if not len(bounds) or bounds[0] != 0 or bounds[-1] != len(sizes) or (np.diff(bounds) < 0).any():
        problems.append(f"has document boundaries that do not rise from 0 to {len(sizes)}")
    return problems


def _bin_problems(prefix: str, expected: int) -> list[str]:
    try:
        found = os.stat(bin_path(prefix)).st_size
    except OSError as error:
        return [f"its .bin cannot be read: {error.strerror}"]
    return [] if found == expected else [f"its .bin has {found} bytes, expected {expected}"]
