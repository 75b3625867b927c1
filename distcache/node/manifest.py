"""What a cache needs on a node: files, and their blocks with digests."""

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
from distcache.node.records import LocalCorpus
from distcache.node.store import Store, cache_name, corpus_stem, part_of

__all__ = [
    "CACHE",
    "Block",
    "CorpusStat",
    "File",
    "Manifest",
    "describe",
    "make_manifest",
    "manifest_blocks",
    "stat_corpus",
]

CACHE: Final = 0  # the first file is the cache, those of the corpora follow


class Block(msgspec.Struct, frozen=True):
    """Bytes that are copied and verified together: a block of the cache, or a whole `.idx`.

    Attributes
    ----------
    file : int
        Index into `Manifest.files`.
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
        Its path on the shared filesystem.
    final : Path
        Its path on the node.
    size : int
        Bytes.
    modified : int
        Modification time of the shared file in nanoseconds; 0 if it does not matter. If the time
        of a local index differs, the shared one is read, and compared with its digest.
    """

    shared: str
    final: Path
    size: int
    modified: int

    @property
    def part(self) -> Path:
        """Its path while it is not complete."""
        return part_of(self.final)


class CorpusStat(msgspec.Struct, frozen=True):
    """What `stat` shows of a shared corpus: the time of its index, or what is wrong."""

    modified: int
    problems: tuple[str, ...]


class Manifest(msgspec.Struct, frozen=True):
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
    blocks : tuple of Block
        Of all files; they cover everything but the header and the tables of the cache.
    """

    name: str
    contents: Contents
    source: str
    corpora: tuple[LocalCorpus, ...]
    files: tuple[File, ...]
    blocks: tuple[Block, ...]


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


def stat_corpus(prefix: str, idx_size: int, bin_size: int) -> CorpusStat:
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
    return CorpusStat(modified, tuple(problems))


def make_manifest(
    store: Store, source: str, contents: Contents, facts: Sequence[CorpusStat]
) -> Manifest:
    """Return what a cache needs in a store.

    Parameters
    ----------
    store : Store
        This node's.
    source : str
        Absolute path of the shared cache.
    contents : Contents
        Of it.
    facts : sequence of CorpusStat
        Of its corpora, in their order.

    Raises
    ------
    CorpusError
        With everything that is wrong with the shared corpora.
    CacheCorrupt
        If the cache does not have a digest for each of its blocks.
    """
    problems = [problem for found in facts for problem in found.problems]
    if problems:
        raise CorpusError(*dict.fromkeys(problems))
    name = cache_name(contents.header)
    size = contents.header.file_size
    files = [File(source, store.cache(name), size, 0)]
    blocks = manifest_blocks(contents)
    corpora = []
    seen: set[str] = set()
    for (prefix, idx_size, _, digest), found in zip(describe(contents), facts, strict=True):
        stem = corpus_stem(prefix, digest)
        corpora.append(LocalCorpus(prefix, stem, idx_size))
        if stem in seen:
            continue
        seen.add(stem)
        final = Path(idx_path(store.prefix(stem)))
        blocks.append(Block(len(files), 0, idx_size, digest))
        files.append(File(idx_path(prefix), final, idx_size, found.modified))
    return Manifest(name, contents, source, tuple(corpora), tuple(files), tuple(blocks))


def manifest_blocks(contents: Contents) -> list[Block]:
    """Return the blocks of a cache.

    Raises
    ------
    CacheCorrupt
        If it does not have a digest for each.
    """
    tables_begin = contents.header.tables_begin
    digests = contents.table("blocks").tolist()
    if len(digests) != blocks_in(tables_begin) or tables_begin <= HEADER_SIZE:
        raise CacheCorrupt(f"{contents.path}: has {len(digests)} block digests for its length")
    return [
        Block(CACHE, *block_range(block, tables_begin), f"{digest:016x}")
        for block, digest in enumerate(digests)
    ]
