"""Digests of blocks and arrays, and comparing a cache with them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from distcache.cache.contents import Contents
from distcache.cache.format import BLOCK_SIZE, HEADER_SIZE, LEAF_SIZE
from distcache.errors import CacheCorrupt, StorageError
from distcache.storage.files import FileVersion
from distcache.storage.place import PIECE_BYTES, open_place, pieces_of
from distcache.storage.threads import map_in_threads
from distcache.storage.url import is_url
from distcache.storage.watchdog import tick

Bytes = bytes | bytearray | memoryview | NDArray[Any]


def leaves_of(data: Bytes) -> NDArray[np.uint64]:
    """Return the leaf digests of bytes that start at a leaf, uint64 of shape (leaves,)."""
    flat = np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
    if 0 < flat.size <= LEAF_SIZE:  # most arrays of a cache of many corpora
        return np.array([xxhash.xxh3_64_intdigest(flat.data)], np.uint64)
    return np.fromiter(
        (
            xxhash.xxh3_64_intdigest(flat[begin : begin + LEAF_SIZE].data)
            for begin in range(0, flat.size, LEAF_SIZE)
        ),
        np.uint64,
        -(-flat.size // LEAF_SIZE),
    )


def array_digest(leaves: NDArray[np.uint64]) -> str:
    """Return the digest of an array from its leaves, in hexadecimal."""
    return xxhash.xxh3_128_hexdigest(leaves.astype("<u8").tobytes())


def joined_digest(shares: Iterable[bytes]) -> str:
    """Return the digest of an array whose leaves come in several shares, as bytes of u64."""
    return array_digest(np.frombuffer(b"".join(shares), np.uint64))


def read_pieces(descriptor: int, begin: int, end: int) -> Iterator[NDArray[np.uint8]]:
    """Yield bytes [begin, end) of a file in leaves from `begin`, all in the same small buffer.

    Raises
    ------
    CacheCorrupt
        If the file ends before.
    """
    # A leaf stays in a core's cache between reading and digesting.
    buffer = np.empty(min(LEAF_SIZE, end - begin), np.uint8)
    for offset in range(begin, end, LEAF_SIZE):
        piece = buffer[: end - offset]
        done = 0
        while done < piece.size:
            count = os.preadv(descriptor, [piece[done:].data], offset + done)
            if count == 0:
                raise CacheCorrupt(f"the file ends at byte {offset + done}, expected {end}")
            done += count
            tick()
        yield piece


def blocks_in(tables_begin: int) -> int:
    """Return the number of blocks from the end of the header to the tables."""
    return -(-tables_begin // BLOCK_SIZE)


def block_range(block: int, tables_begin: int) -> tuple[int, int]:
    """Return the bytes [begin, end) of a block: the header and the tables are in none."""
    return max(block * BLOCK_SIZE, HEADER_SIZE), min((block + 1) * BLOCK_SIZE, tables_begin)


def verify_cache(
    cache: Contents,
    threads: int = 2,
    version: FileVersion | None = None,
    advance: Callable[[float], None] = lambda _: None,
) -> None:
    """Compare every block of a cache, a file or an object, with its digest.

    The header and the tables were compared when they were read, and blocks cover all other bytes.

    Parameters
    ----------
    cache : Contents
        Contents of the file at its path.
    threads : int
        Blocks that are read at a time.
    version : FileVersion or None
        Version of the object when its tables were read.
    advance : callable
        Receiver of the bytes that were compared.

    Raises
    ------
    CacheCorrupt
        With one sentence for each block that differs.
    """
    size = PIECE_BYTES if is_url(cache.path) else LEAF_SIZE
    expected = cache.table("blocks").tolist()
    tables_begin = cache.header.tables_begin
    if len(expected) != blocks_in(tables_begin):
        raise CacheCorrupt(f"{cache.path}: has {len(expected)} block digests for its length")
    with open_place(str(cache.path), version) as place:

        def digest_or_none(block: int) -> int | None:
            digest = xxhash.xxh3_64()
            try:
                for piece in pieces_of(place, *block_range(block, tables_begin), size):
                    digest.update(piece.data)
                    advance(piece.size)
            except StorageError:
                raise  # the store, and not the object
            except OSError:  # cut short, or unreadable
                return None
            return digest.intdigest()

        found = map_in_threads(digest_or_none, range(len(expected)), threads)
    problems = []
    for block, (wanted, digest) in enumerate(zip(expected, found, strict=True)):
        if wanted != digest:
            begin, end = block_range(block, tables_begin)
            problems.append(
                f"{cache.path}: block {block}, bytes {begin} to {end}, differs from its digest"
            )
    if problems:
        raise CacheCorrupt(*problems)
