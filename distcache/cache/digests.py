"""Digests: of arrays, in leaves that ranks can compute apart, and of the file, in blocks.

The digest of an array is the XXH3-128 of the XXH3-64 digests, as little-endian u64, of its
successive pieces of 1 MiB. The digest of a block is the plain XXH3-64 of its bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from distcache.cache.format import BLOCK_SIZE, HEADER_SIZE, LEAF_SIZE

__all__ = ["Bytes", "array_digest", "block_range", "blocks_in", "leaf_count", "leaves_of"]

Bytes = bytes | bytearray | memoryview | NDArray[Any]


def leaf_count(nbytes: int) -> int:
    """Return the number of leaves of an array of so many bytes."""
    return -(-nbytes // LEAF_SIZE)


def leaves_of(data: Bytes) -> NDArray[np.uint64]:
    """Return the leaf digests of bytes that start at a leaf, uint64 of shape (leaves,)."""
    flat = np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
    return np.fromiter(
        (
            xxhash.xxh3_64_intdigest(flat[begin : begin + LEAF_SIZE].data)
            for begin in range(0, flat.size, LEAF_SIZE)
        ),
        np.uint64,
        leaf_count(flat.size),
    )


def array_digest(leaves: NDArray[np.uint64]) -> str:
    """Return the digest of an array from its leaves, in hexadecimal."""
    return xxhash.xxh3_128_hexdigest(leaves.astype("<u8").tobytes())


def blocks_in(tables_begin: int) -> int:
    """Return the number of blocks from the end of the header to the tables."""
    return -(-tables_begin // BLOCK_SIZE)


def block_range(block: int, tables_begin: int) -> tuple[int, int]:
    """Return the bytes [begin, end) of a block: the header and the tables are in none."""
    return max(block * BLOCK_SIZE, HEADER_SIZE), min((block + 1) * BLOCK_SIZE, tables_begin)
