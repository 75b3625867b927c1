"""What a cache needs on a node: files, and their blocks with digests."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

from distcache.cache.contents import Contents, sources_drawn_no_more
from distcache.cache.corpus_places import corpus_places, corpus_stem
from distcache.cache.digests import block_range, blocks_in
from distcache.cache.format import HEADER_SIZE
from distcache.corpus import bin_path, idx_path
from distcache.corpus.loss import loss_path
from distcache.corpus.mds.index_json import CODECS
from distcache.errors import CacheCorrupt, CorpusError, NotReady
from distcache.node.records import AHEAD, LocalCorpus, Request
from distcache.node.store import Store, cache_name, part_of
from distcache.storage.files import FileVersion
from distcache.storage.listing import listed, listed_version
from distcache.storage.place import require_answer, threads_for
from distcache.storage.threads import map_in_threads
from distcache.storage.url import is_url

CACHE: Final = 0  # the first file is the cache, those of the corpora follow
UNIT_BYTES: Final = 64 << 20  # bytes of a `.bin` that are copied and digested together


class ShardSource(msgspec.Struct, frozen=True):
    """A file whose bytes become a block: a shard."""

    path: str  # path on the shared filesystem
    codec: str  # one of `distcache.corpus.mds.index_json.CODECS`: how it is compressed
    size: int  # bytes of the file, which travel


class Block(msgspec.Struct, frozen=True):
    """Bytes that are copied and verified together: of the cache or a `.bin`, an `.idx`, a shard."""

    file: int  # index into `Manifest.files`
    # bytes of that file
    begin: int
    end: int
    # XXH3 in hexadecimal, of 64 bits for a block of the cache and of 128 for others; empty for one
    # of a `.bin`, whose digest the node records when it has been copied
    digest: str
    # shard that the bytes come from; None if they are those of the shared file at the same place
    source: ShardSource | None = None

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end - self.begin


class File(msgspec.Struct, frozen=True):
    """A file to have on the node."""

    shared: str  # path on the shared filesystem, or URL
    final: Path  # path on the node
    size: int  # bytes
    # Modification time of the shared file in nanoseconds; 0 if it does not matter. If the time of a
    # local index differs, the shared one is read, and compared with its digest.
    modified: int
    # ``whole`` for the cache and an `.idx`; for a `.bin` ``shards``, which are its blocks, or
    # ``copy``
    kind: Literal["whole", "shards", "copy"] = "whole"
    version: FileVersion | None = None  # version of an object: any other is refused

    @property
    def part(self) -> Path:
        """Its path while it is not complete."""
        return part_of(self.final)

    @property
    def digests(self) -> Path:
        """Where the digests of a copied `.bin` are."""
        return digests_path(self.final)


def digests_path(tokens: Path) -> Path:
    """Return where the digests of a copied `.bin` are: u64 for each unit, 0 if not copied yet."""
    return tokens.with_name(f"{tokens.name}.xxh3")


class Described(NamedTuple):
    """What a cache says of a corpus."""

    prefix: str  # absolute, or a URL
    # bytes of its files
    idx_size: int
    bin_size: int
    digest: str  # digest of its `.idx`
    shards: int  # number of shards that make up its `.bin`; 0 if it is a file
    left_out: bool = False  # whether no sample that follows is of it
    # bytes and digest of its loss mask, 0 and "" without one; a mask in a bucket is copied
    loss_size: int = 0
    loss_digest: str = ""

    @property
    def paths(self) -> list[str]:
        """Paths of its files."""
        found = [idx_path(self.prefix), bin_path(self.prefix)]
        return [*found, loss_path(self.prefix)] if self.loss_size else found


class CorpusStat(msgspec.Struct, frozen=True):
    """What `stat` shows of a shared corpus."""

    # versions of its files; None if there is none
    idx: FileVersion | None
    bin: FileVersion | None
    loss: FileVersion | None
    problems: tuple[str, ...]  # problems of the corpus
    missing: bool = True  # whether every problem is a missing file; also without problems


class Manifest(msgspec.Struct, frozen=True):
    """All that a cache needs on a node."""

    name: str  # name of the cache in the store
    contents: Contents  # header and tables of the cache
    source: str  # absolute path of the shared cache
    corpora: tuple[LocalCorpus, ...]  # corpora in the order of the cache's sources
    # the cache, then each `.idx` once, and the `.bin` of corpora whose shards are unpacked
    files: tuple[File, ...]
    # blocks of all files; they cover everything but the header and the tables of the cache, and
    # what is between shards
    blocks: tuple[Block, ...]


def describe(contents: Contents) -> list[Described]:
    """Return what a cache says of each of its corpora."""
    sources, ended = contents.table("sources"), sources_drawn_no_more(contents)
    return [
        Described(
            prefix,
            int(entry["idx_size"]),
            int(entry["bin_size"]),
            entry["idx_digest"].decode("ascii", "replace"),
            int(entry["shards_end"] - entry["shards_begin"]),
            number in ended,
            contents.loss_size(number),
            contents.loss_digest(number) or "",
        )
        for number, (prefix, entry) in enumerate(zip(corpus_places(contents), sources, strict=True))
    ]


def stat_corpora(corpora: Sequence[Described], threads: int) -> list[CorpusStat]:
    """Stat shared corpora, several at a time; see `stat_corpus`."""
    at_once = threads_for((corpus.prefix for corpus in corpora), threads)
    with listed(path for corpus in corpora for path in corpus.paths):
        return map_in_threads(stat_corpus, corpora, at_once)


def stat_corpus(corpus: Described) -> CorpusStat:
    """Compare the sizes of a shared corpus's files with those that a cache was built from."""
    if corpus.left_out:  # its files may be gone, or others
        return CorpusStat(None, None, None, ())
    problems: list[str] = []
    missing: list[str] = []
    idx = _stat(idx_path(corpus.prefix), corpus.idx_size, problems, missing)
    path, tokens, loss = bin_path(corpus.prefix), None, None
    if not corpus.shards or os.path.lexists(path):
        tokens = _stat(path, corpus.bin_size, problems, missing)
    if corpus.loss_size:
        loss = _stat(loss_path(corpus.prefix), corpus.loss_size, problems, missing)
    return CorpusStat(idx, tokens, loss, tuple(problems), missing == problems)


def _stat(path: str, expected: int, problems: list[str], missing: list[str]) -> FileVersion | None:
    """Return the version of a file or object, or add a problem, and say if it is missing.

    Raises
    ------
    StorageError
        If a store does not say whether it has an object.
    """
    try:
        found = listed_version(path)
    except OSError as error:
        require_answer(error)
        moved = "" if is_url(path) else "; if the corpora have moved, say so by --prefix FROM=TO"
        problems.append(f"{path}: cannot be read: {error.strerror}{moved}")
        if isinstance(error, FileNotFoundError):
            missing.append(problems[-1])
        return None
    if found.size != expected:
        problems.append(
            f"{path}: has {found.size} bytes, the cache was built from {expected}; build the cache "
            "again"
        )
    return found


def make_manifest(
    store: Store,
    source: str,
    contents: Contents,
    version: FileVersion,
    facts: Sequence[CorpusStat],
    asked: Request = Request(),  # noqa: B008  frozen
) -> Manifest:
    """Return what a cache needs in a store.

    Parameters
    ----------
    store : Store
        This node's.
    source : str
        Absolute path or URL of the shared cache.
    contents : Contents
        Header and tables of the cache.
    version : FileVersion
        Version of the cache.
    facts : sequence of CorpusStat
        Facts of its corpora, in their order.
    asked : Request
        Contents of the copy. A `.bin` beside the shared index is linked, or copied, instead of
        the one that shards make up.

    Raises
    ------
    CorpusError
        With everything that is wrong with the shared corpora.
    NotReady
        If all problems are missing files.
    CacheCorrupt
        If the cache does not have a digest for each of its blocks.
    """
    problems = [problem for found in facts for problem in found.problems]
    if problems:
        kind = NotReady if all(found.missing for found in facts) else CorpusError
        raise kind(*dict.fromkeys(problems))
    name = cache_name(contents.header)
    size = contents.header.file_size
    files = [File(source, store.cache(name), size, 0, version=version)]
    blocks = manifest_blocks(contents)
    corpora = []
    seen: set[str] = set()
    for number, (corpus, found) in enumerate(zip(describe(contents), facts, strict=True)):
        local = _local_corpus(contents, number, corpus, found, asked)
        if asked.tokens == AHEAD or is_url(corpus.prefix) or local.copied:
            local = msgspec.structs.replace(local, bin_version=found.bin)
        corpora.append(local)
        if local.stem in seen or not local.idx_size:
            continue
        seen.add(local.stem)
        blocks.append(Block(len(files), 0, corpus.idx_size, corpus.digest))
        files.append(_index_file(corpus, found, Path(idx_path(store.prefix(local.stem)))))
        if local.loss_size:
            final = Path(loss_path(store.prefix(local.stem)))
            blocks.append(Block(len(files), 0, corpus.loss_size, corpus.loss_digest))
            files.append(_mask_file(corpus, found, final))
        if local.bin_size:
            own = copy_blocks(local.bin_size, len(files))
            blocks += own if local.copied else shard_blocks(contents, number, len(files))
            tokens = Path(bin_path(store.prefix(local.stem)))
            files.append(_tokens_file(corpus, local, found, tokens))
    return Manifest(name, contents, source, tuple(corpora), tuple(files), tuple(blocks))


def _local_corpus(
    contents: Contents,
    number: int,
    corpus: Described,
    found: CorpusStat,
    asked: Request,
) -> LocalCorpus:
    """Describe a corpus as this node stores it; a stored `.bin` or mask decides its name."""
    packed = bool(contents.shards_of(number)["codec"].any())
    wanted = asked.tokens == "copy" or (asked.tokens == "link" and packed)
    unpacked, copied = found.idx is not None and found.bin is None and wanted, False
    own = ""
    if unpacked:
        own = contents.table("sources")["shards_digest"][number].decode("ascii")
    elif asked.tokens == "copy" and found.bin is not None:
        copied = True
        own = f"copy of {found.bin.size} {found.bin.modified} {found.bin.tag}"
    has_mask = found.loss is not None and is_url(corpus.prefix)
    content = " ".join(filter(None, [own, f"loss {corpus.loss_digest}" if has_mask else ""]))
    return LocalCorpus(
        shared=corpus.prefix,
        stem=corpus_stem(corpus.prefix, corpus.digest, content),
        idx_size=0 if found.idx is None else corpus.idx_size,
        bin_size=corpus.bin_size if own else 0,
        has_tokens=found.bin is not None or unpacked,
        copied=copied,
        loss_size=corpus.loss_size if has_mask else 0,
    )


def _index_file(corpus: Described, found: CorpusStat, final: Path) -> File:
    assert found.idx is not None, "corpora with problems were refused"
    path = idx_path(corpus.prefix)
    version = found.idx if is_url(path) else None
    return File(path, final, corpus.idx_size, found.idx.modified, version=version)


def _mask_file(corpus: Described, found: CorpusStat, final: Path) -> File:
    assert found.loss is not None, "masks that are not there are not copied"
    path = loss_path(corpus.prefix)
    return File(path, final, corpus.loss_size, found.loss.modified, version=found.loss)


def _tokens_file(corpus: Described, local: LocalCorpus, found: CorpusStat, final: Path) -> File:
    kind: Literal["copy", "shards"] = "copy" if local.copied else "shards"
    return File(bin_path(corpus.prefix), final, local.bin_size, 0, kind, found.bin)


def copy_blocks(size: int, file: int) -> list[Block]:
    """Return the blocks of a `.bin` that is copied."""
    return [
        Block(file, begin, min(begin + UNIT_BYTES, size), "")
        for begin in range(0, size, UNIT_BYTES)
    ]


def shard_blocks(contents: Contents, source: int, file: int) -> list[Block]:
    """Return the shards of a corpus as blocks of its `.bin`."""
    blocks = []
    for row in contents.shards_of(source):
        path = contents.shard_path(row)
        codec = CODECS[int(row["codec"])]
        begin, size = int(row["base"]), int(row["raw_size"])
        source_file = ShardSource(path, codec, int(row["zip_size"]) if codec else size)
        digest = row["raw_digest"].tobytes().hex()
        blocks.append(Block(file, begin, begin + size, digest, source_file))
    return blocks


class BlockOrigin(NamedTuple):
    """Where the bytes of a block come from: bytes [begin, end) of a file, or of an object."""

    path: str
    begin: int
    end: int
    version: FileVersion | None


def origin_of(manifest: Manifest, block: Block) -> BlockOrigin:
    """Return where the bytes of a block come from."""
    if block.source is not None:
        return BlockOrigin(block.source.path, 0, block.source.size, None)
    file = manifest.files[block.file]
    return BlockOrigin(file.shared, block.begin, block.end, file.version)


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
