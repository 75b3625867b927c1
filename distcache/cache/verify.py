"""Read a cache back, every byte of it, and compare with its digests."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import xxhash

from distcache.cache.digests import array_digest, block_range, blocks_in, leaves_of
from distcache.cache.format import ARRAY_NAMES
from distcache.cache.reader import Cache
from distcache.errors import CacheCorrupt

__all__ = ["verify_arrays", "verify_cache"]


def read_bytes(descriptor: int, begin: int, end: int) -> bytearray:
    """Read bytes [begin, end) of a file; shorter only where the file ends."""
    data = bytearray(end - begin)
    done = 0
    with memoryview(data) as view:
        while done < len(data):
            count = os.preadv(descriptor, [view[done:]], begin + done)
            if count == 0:
                break
            done += count
    del data[done:]
    return data


def verify_cache(
    cache: Cache, threads: int = 2, progress: Callable[[int], None] = lambda _: None
) -> None:
    """Compare every block and every array of a cache with its digest.

    Parameters
    ----------
    cache : Cache
        Opened, so that its header and tables are known to be right.
    threads : int
        Blocks that are read at a time.
    progress : callable
        Told the bytes of each block that is done.

    Raises
    ------
    CacheCorrupt
        With one sentence for each block and array that differs.
    """
    expected = cache.table("blocks")
    begin_of_tables = cache.header.tables_begin
    problems = []
    if len(expected) != blocks_in(begin_of_tables):
        raise CacheCorrupt(f"{cache.path}: has {len(expected)} block digests for its length")
    descriptor = os.open(cache.path, os.O_RDONLY | os.O_CLOEXEC)

    def digest(block: int) -> int:
        begin, end = block_range(block, begin_of_tables)
        found = xxhash.xxh3_64_intdigest(read_bytes(descriptor, begin, end))
        progress(end - begin)
        return found

    try:
        with ThreadPoolExecutor(threads) as pool:
            for block, found in enumerate(pool.map(digest, range(len(expected)))):
                if found != int(expected[block]):
                    begin, end = block_range(block, begin_of_tables)
                    problems.append(
                        f"{cache.path}: block {block}, bytes {begin} to {end}, differs from its "
                        "digest"
                    )
    finally:
        os.close(descriptor)
    if problems:
        raise CacheCorrupt(*problems)


def verify_arrays(cache: Cache) -> None:
    """Compare every array with the digest that its table gives.

    Raises
    ------
    CacheCorrupt
        With one sentence for each array that differs.
    """
    problems = [
        f"{cache.path}: {name} of {table} row {row} differs from its digest"
        for table in ARRAY_NAMES
        for row in range(len(cache.table(table)))
        for name, view in cache.arrays(table, row).items()
        if array_digest(leaves_of(cache.read(view))) != view.digest
    ]
    if problems:
        raise CacheCorrupt(*problems)
