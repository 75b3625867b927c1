"""Read a cache back, every byte of it, and compare with its digests."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

from distcache.cache.digests import block_digest, block_range, blocks_in
from distcache.cache.reader import Cache
from distcache.errors import CacheCorrupt

__all__ = ["verify_cache"]


def verify_cache(cache: Cache, threads: int = 2) -> None:
    """Compare every block of a cache with its digest.

    The header and the tables were compared when it was opened, and blocks cover all other bytes.

    Parameters
    ----------
    cache : Cache
        Opened.
    threads : int
        Blocks that are read at a time.

    Raises
    ------
    CacheCorrupt
        With one sentence for each block that differs.
    """
    expected = cache.table("blocks").tolist()
    tables_begin = cache.header.tables_begin
    if len(expected) != blocks_in(tables_begin):
        raise CacheCorrupt(f"{cache.path}: has {len(expected)} block digests for its length")
    descriptor = os.open(cache.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with ThreadPoolExecutor(threads) as pool:
            found = list(
                pool.map(
                    lambda block: block_digest(descriptor, block, tables_begin),
                    range(len(expected)),
                )
            )
    finally:
        os.close(descriptor)
    problems = []
    for block, (wanted, digest) in enumerate(zip(expected, found, strict=True)):
        if wanted != digest:
            begin, end = block_range(block, tables_begin)
            problems.append(
                f"{cache.path}: block {block}, bytes {begin} to {end}, differs from its digest"
            )
    if problems:
        raise CacheCorrupt(*problems)
