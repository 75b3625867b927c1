"""What a cache needs on a node: files, and their blocks with digests."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from distcache.cache.contents import Contents
from distcache.cache.digests import block_range, blocks_in
from distcache.cache.format import HEADER_SIZE
from distcache.corpus import bin_path, idx_path
from distcache.corpus.shard_table import DIGESTED
from distcache.errors import CacheCorrupt, CorpusError
from distcache.mds.index_json import CODECS
from distcache.node.records import LocalCorpus
from distcache.node.store import Store, cache_name, corpus_stem, part_of

__all__ = [
    "CACHE",
    "Block",
    "CorpusStat",
    "Described",
    "File",
    "Manifest",
    "Source",
    "describe",
    "make_manifest",
    "manifest_blocks",
    "origin_of",
    "shard_blocks",
    "stat_corpus",
]

CACHE: Final = 0  # the first file is the cache, those of the corpora follow


class Source(msgspec.Struct, frozen=True):
    """A file whose bytes become a block: a shard.

    Attributes
    ----------
    path : str
        On the shared filesystem.
    codec : str
        One of `distcache.mds.index_json.CODECS`: how it is compressed.
    size : int
        Bytes of the file, which travel.
    """

    path: str
    codec: str
    size: int


class Block(msgspec.Struct, frozen=True):
    """Bytes that are copied and verified together: of the cache, a whole `.idx`, or a shard.

    Attributes
    ----------
    file : int
        Index into `Manifest.files`.
    begin, end : int
        Bytes of that file.
    digest : str
        XXH3 in hexadecimal, of 64 bits for a block of the cache and of 128 for others.
    source : Source or None
        Of a shard; None if the bytes are those of the shared file at the same place.
    """

    file: int
    begin: int
    end: int
    digest: str
    source: Source | None = None

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
    unpacked : bool
        Whether its blocks are shards.
    """

    shared: str
    final: Path
    size: int
    modified: int
    unpacked: bool = False

    @property
    def part(self) -> Path:
        """Its path while it is not complete."""
        return part_of(self.final)


class Described(NamedTuple):
    """What a cache says of a corpus.

    Attributes
    ----------
    prefix : str
        Absolute.
    idx_size, bin_size : int
        Bytes of its files.
    digest : str
        Of its `.idx`.
    shards : int
        How many make up its `.bin`; 0 if it is a file.
    """

    prefix: str
    idx_size: int
    bin_size: int
    digest: str
    shards: int


class CorpusStat(msgspec.Struct, frozen=True):
    """What `stat` shows of a shared corpus.

    Attributes
    ----------
    modified : int
        Time of its index.
    problems : tuple of str
        What is wrong.
    has_bin : bool
        Whether it has a `.bin`.
    """

    modified: int
    problems: tuple[str, ...]
    has_bin: bool = True


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
        The cache, then each `.idx` once, and the `.bin` of corpora whose shards are unpacked.
    blocks : tuple of Block
        Of all files; they cover everything but the header and the tables of the cache, and what
        lies between shards.
    """

    name: str
    contents: Contents
    source: str
    corpora: tuple[LocalCorpus, ...]
    files: tuple[File, ...]
    blocks: tuple[Block, ...]


def describe(contents: Contents) -> list[Described]:
    """Return what a cache says of each of its corpora."""
    sources = contents.table("sources")
    return [
        Described(
            str(Path(prefix).absolute()),
            int(entry["idx_size"]),
            int(entry["bin_size"]),
            entry["idx_digest"].decode("ascii", "replace"),
            int(entry["shards_end"] - entry["shards_begin"]),
        )
        for prefix, entry in zip(contents.prefixes, sources, strict=True)
    ]


def stat_corpus(corpus: Described) -> CorpusStat:
    """Compare the sizes of a shared corpus's files with those that a cache was built from."""
    problems = []
    modified = 0
    path = bin_path(corpus.prefix)
    has_bin = not corpus.shards or os.path.lexists(path)
    files = [(idx_path(corpus.prefix), corpus.idx_size)]
    files += [(path, corpus.bin_size)] if has_bin else []
    for path, expected in files:
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
    return CorpusStat(modified, tuple(problems), has_bin)


def make_manifest(
    store: Store,
    source: str,
    contents: Contents,
    facts: Sequence[CorpusStat],
    shards: str = "compressed",
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
    shards : str
        Of which corpora the node gets the `.bin` that shards make up: ``compressed`` for those with
        a compressed shard, ``all`` or ``none``. One that is beside the shared index is linked.

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
    for number, (corpus, found) in enumerate(zip(describe(contents), facts, strict=True)):
        unpacked = not found.has_bin and _is_wanted(contents, number, shards)
        content = contents.table("sources")["shards_digest"][number].decode("ascii")
        stem = corpus_stem(corpus.prefix, corpus.digest, content if unpacked else "")
        size = corpus.bin_size if unpacked else 0
        has_tokens = found.has_bin or unpacked
        corpora.append(LocalCorpus(corpus.prefix, stem, corpus.idx_size, size, has_tokens))
        if stem in seen:
            continue
        seen.add(stem)
        final = Path(idx_path(store.prefix(stem)))
        blocks.append(Block(len(files), 0, corpus.idx_size, corpus.digest))
        files.append(File(idx_path(corpus.prefix), final, corpus.idx_size, found.modified))
        if unpacked:
            blocks += shard_blocks(contents, number, len(files))
            final = Path(bin_path(store.prefix(stem)))
            shared = bin_path(corpus.prefix)
            files.append(File(shared, final, corpus.bin_size, 0, unpacked=True))
    return Manifest(name, contents, source, tuple(corpora), tuple(files), tuple(blocks))


def _is_wanted(contents: Contents, source: int, shards: str) -> bool:
    """Return whether the shards of a corpus are to become a `.bin`."""
    packed = bool(contents.shards_of(source)["codec"].any())
    return shards == "all" or (shards == "compressed" and packed)


def shard_blocks(contents: Contents, source: int, file: int) -> list[Block]:
    """Return the shards of a corpus as blocks of its `.bin`.

    Raises
    ------
    CorpusError
        If their digests are not known.
    """
    blocks = []
    for row in contents.shards_of(source):
        path = contents.shard_path(row)
        if not int(row["flags"]) & DIGESTED:
            raise CorpusError(
                f"{path}: has no digest, since it was indexed with --headers-only; index the data "
                "set again without it, and build again"
            )
        codec = CODECS[int(row["codec"])]
        begin, size = int(row["base"]), int(row["raw_size"])
        source_file = Source(path, codec, int(row["zip_size"]) if codec else size)
        digest = row["raw_digest"].tobytes().hex()
        blocks.append(Block(file, begin, begin + size, digest, source_file))
    return blocks


def origin_of(manifest: Manifest, block: Block) -> tuple[str, int, int]:
    """Return where the bytes of a block come from: a path, and bytes [begin, end) of that file."""
    if block.source is not None:
        return block.source.path, 0, block.source.size
    return manifest.files[block.file].shared, block.begin, block.end


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
