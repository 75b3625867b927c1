"""Digests of inputs: of the bytes of pieces, and of files out of these."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Final

import xxhash

from distcache.files import open_regular

__all__ = ["digest_of_pieces", "digest_range"]

READ: Final = 4 << 20  # bytes at a time


def digest_range(path: str, begin: int, end: int, stopped: Callable[[], bool]) -> str:
    """Return the XXH3-128 of bytes [begin, end) of a file, unless it is told to stop."""
    digest = xxhash.xxh3_128()
    descriptor = open_regular(path)
    try:
        while (
            begin < end
            and not stopped()
            and (block := os.pread(descriptor, min(READ, end - begin), begin))
        ):
            digest.update(block)
            begin += len(block)
    finally:
        os.close(descriptor)
    return digest.hexdigest()


def digest_of_pieces(digests: Sequence[str]) -> str:
    """Return the digest of a file: that of its one piece, or that of the pieces' digests."""
    if len(digests) == 1:
        return digests[0]
    return xxhash.xxh3_128(b"".join(map(bytes.fromhex, digests))).hexdigest()
