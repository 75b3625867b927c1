"""What a cache needs on a node: files, and the units of them that have digests."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from distcache.cache.contents import Contents
from distcache.cache.digests import block_range, blocks_in
from distcache.cache.format import HEADER_SIZE
from distcache.corpus import bin_path, idx_path
from distcache.errors import CacheCorrupt, CorpusError
from distcache.node.record import LocalCorpus
from distcache.node.store import Store, cache_name, corpus_stem, part_of

__all__ = [
    "CACHE",
    "Facts",
    "File",
    "Unit",
    "Wanted",
    "block_units",
    "describe",
    "look_at",
    "make_wanted",
]

CACHE: Final = 0  # the first file is the cache, those of the corpora follow


class Unit(msgspec.Struct, frozen=True):
    """Bytes that are copied and compared as one: a block of the cache, or a whole `.idx`.

    Attributes
    ----------
    file : int
        Index into `Wanted.files`.
    begin, end : int
        Bytes of that file.
    digest : str
        XXH3 in hexadecimal, of 64 bits for a block and of 128 for an `.idx`.
    """

    file: int
    begin: int
    end: int
    digest: str

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end - self.begin


class File(msgspec.Struct, frozen=True):
    """A file to have on the node.

    Attributes
    ----------
    shared : str
        Where all nodes see it.
    final : Path
        Where it goes.
    size : int
        Bytes.
    modified : int
        When the shared file was written, in nanoseconds; 0 if that does not matter. A local index
        of another time is fetched anew, since only reading the shared one could tell whether it
        still is the same.
    """

    shared: str
    final: Path
    size: int
    modified: int

    @property
    def part(self) -> Path:
        """Where it is while it is not complete."""
        return part_of(self.final)


class Facts(msgspec.Struct, frozen=True):
    """What one look at a shared corpus shows: when its index was written, or what is wrong."""

    modified: int
    problems: tuple[str, ...]


class Wanted(msgspec.Struct, frozen=True):
    """All that a cache needs on a node.

    Attributes
    ----------
    name : str
        Of the cache in the store.
    contents : Contents
        Its header and tables.
    source : str
        Absolute path of the shared cache.
    corpora : tuple of LocalCorpus
        In the order of the cache's sources.
    files : tuple of File
        The cache, then each `.idx` once.
    units : tuple of Unit
        Of all files. They cover each but for the header and the tables of the cache.
    """

    name: str
    contents: Contents
    source: str
    corpora: tuple[LocalCorpus, ...]
    files: tuple[File, ...]
    units: tuple[Unit, ...]


def describe(contents: Contents) -> list[tuple[str, int, int, str]]:
    """Return absolute prefix, bytes of `.idx` and `.bin`, and digest of each corpus."""
    sources = contents.table("sources")
    return [
        (str(Path(prefix).absolute()), int(idx), int(bin_), digest.decode("ascii", "replace"))
        for prefix, idx, bin_, digest in zip(
            contents.prefixes,
            sources["idx_size"],
            sources["bin_size"],
            sources["idx_digest"],
            strict=True,
        )
    ]


def look_at(prefix: str, idx_size: int, bin_size: int) -> Facts:
    """Compare the sizes of a shared corpus's files with those that a cache was built from."""
    problems = []
    modified = 0
    for path, expected in ((idx_path(prefix), idx_size), (bin_path(prefix), bin_size)):
        try:
            found = os.stat(path)
        except OSError as error:
            problems.append(f"{path}: cannot be read: {error.strerror}")
            continue
        if found.st_size != expected:
            problems.append(
                f"{path}: has {found.st_size} bytes, the cache was built from {expected}; build "
                "the cache again"
            )
        modified = modified or found.st_mtime_ns
    return Facts(modified, tuple(problems))


def make_wanted(store: Store, source: str, contents: Contents, facts: Sequence[Facts]) -> Wanted:
    """Say what a cache needs in a store.

    Parameters
    ----------
    store : Store
        This node's.
    source : str
        Absolute path of the shared cache.
    contents : Contents
        Of it.
    facts : sequence of Facts
        Of its corpora, in their order.

    Raises
    ------
    CorpusError
        With all that is wrong with the shared corpora.
    CacheCorrupt
        If the cache has not a digest for each of its blocks.
    """
    problems = [problem for found in facts for problem in found.problems]
    if problems:
        raise CorpusError(*dict.fromkeys(problems))
    name = cache_name(contents.header)
    size = contents.header.file_size
    files = [File(source, store.cache(name), size, 0)]
    units = block_units(contents)
    corpora = []
    seen: set[str] = set()
    for (prefix, idx_size, _, digest), found in zip(describe(contents), facts, strict=True):
        stem = corpus_stem(prefix, digest)
        corpora.append(LocalCorpus(prefix, stem, idx_size))
        if stem in seen:
            continue
        seen.add(stem)
        final = Path(idx_path(store.prefix(stem)))
        units.append(Unit(len(files), 0, idx_size, digest))
        files.append(File(idx_path(prefix), final, idx_size, found.modified))
    return Wanted(name, contents, source, tuple(corpora), tuple(files), tuple(units))


def block_units(contents: Contents) -> list[Unit]:
    """Return the blocks of a cache.

    Raises
    ------
    CacheCorrupt
        If it has not a digest for each.
    """
    tables_begin = contents.header.tables_begin
    digests = contents.table("blocks").tolist()
    if len(digests) != blocks_in(tables_begin) or tables_begin <= HEADER_SIZE:
        raise CacheCorrupt(f"{contents.path}: has {len(digests)} block digests for its length")
    return [
        Unit(CACHE, *block_range(block, tables_begin), f"{digest:016x}")
        for block, digest in enumerate(digests)
    ]
