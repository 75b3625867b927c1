"""What a store already has: valid blocks, which need not be fetched."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from distcache.node.manifest import CACHE, Block, File, Manifest, origin_of
from distcache.node.records import Ready
from distcache.node.staged_files import (
    block_matches,
    differs,
    digest_of,
    read_shared,
    recorded_digest,
)
from distcache.storage.files import closing_fd, is_plain_file, open_regular, read_range


class LocalState(msgspec.Struct, frozen=True):
    """Which of a cache's files and blocks a store has."""

    complete: frozenset[int]  # valid files, under their final names
    right: frozenset[int]  # valid blocks, in complete files and in others
    # complete files whose time differs from the shared ones, which may have changed
    dated: frozenset[int] = frozenset()


def verify_local(
    manifest: Manifest, threads: int, advance: Callable[[float], None], trusted: Ready | None = None
) -> LocalState:
    """Compare every block that is in the store with its digest.

    Parameters
    ----------
    manifest : Manifest
        Files and blocks that the cache needs.
    threads : int
        Blocks that are read at a time.
    advance : callable
        Receives the bytes of every block.
    trusted : Ready or None
        The record of a copy: files with its times and sizes are not read.

    Returns
    -------
    LocalState
        Blocks and files that are valid.
    """
    known = frozenset() if trusted is None else _as_recorded(manifest, trusted)

    def verify(number: int) -> int | None:
        block = manifest.blocks[number]
        right = block.file in known or _is_valid(manifest.files[block.file], block)
        advance(block.size)
        return number if right else None

    with ThreadPoolExecutor(threads) as pool:
        found = pool.map(verify, range(len(manifest.blocks)))
        right = frozenset(number for number in found if number is not None)
    complete = set(range(len(manifest.files)))
    complete -= {block.file for number, block in enumerate(manifest.blocks) if number not in right}
    complete = {file for file in complete if has_final(manifest.files[file])}
    if CACHE in complete and CACHE not in known and not _frame_matches(manifest):
        complete.discard(CACHE)
    dated = {file for file in complete if not _has_time(manifest.files[file])}
    return LocalState(frozenset(complete), right, frozenset(dated))


def _as_recorded(manifest: Manifest, record: Ready) -> frozenset[int]:
    """Return the files whose sizes and times are those of a record and of the shared files."""
    found = {
        number
        for number, file in enumerate(manifest.files)
        if number != CACHE and has_final(file) and _has_time(file)
    }
    cache = manifest.files[CACHE]
    if has_final(cache) and os.lstat(cache.final).st_mtime_ns == record.modified:
        found.add(CACHE)
    return frozenset(found)


def has_final(file: File) -> bool:
    """Return whether a file of the right length, which is not being repaired, has its name."""
    if os.path.lexists(file.part):
        return False
    return is_plain_file(file.final) and os.lstat(file.final).st_size == file.size


def _has_time(file: File) -> bool:
    """Return whether a file has the time of the shared one, where that matters."""
    return file.modified in (0, os.lstat(file.final).st_mtime_ns)


def _is_valid(file: File, block: Block) -> bool:
    if os.path.lexists(file.part):  # what was interrupted
        path = file.part
    elif has_final(file):
        path = file.final
    else:
        return False
    digest = recorded_digest(file.digests, block)
    try:
        descriptor = open_regular(path, follow=False)
    except OSError:
        return False
    with closing_fd(descriptor):
        return bool(digest) and block_matches(
            descriptor, msgspec.structs.replace(block, digest=digest)
        )


def require_same_content(manifest: Manifest, files: Iterable[int]) -> None:
    """Read shared indices, and compare them with what the cache was built from.

    Raises
    ------
    CorpusError
        If one has changed.
    Unreadable
        If one cannot be read.
    """
    indices = {number for number, file in enumerate(manifest.files) if file.kind == "whole"}
    by_file = {block.file: block for block in manifest.blocks if block.file in indices}
    for file in files:
        block, digest = by_file[file], digest_of(by_file[file])
        origin = origin_of(manifest, block)
        for piece in read_shared(origin.path, 0, block.end, origin.version):
            digest.update(piece.data)
        if digest.hexdigest() != block.digest:
            raise differs(manifest, block)


def _frame_matches(manifest: Manifest) -> bool:
    """Compare the header and the tables of the local cache with the shared one's."""
    header = manifest.contents.header
    page = header.pack()
    try:
        with closing_fd(open_regular(manifest.files[CACHE].final, follow=False)) as descriptor:
            if read_range(descriptor, 0, len(page)) != page:
                return False
            tables = read_range(descriptor, header.tables_begin, header.file_size)
            return tables == bytes(manifest.contents.tables)
    except (OSError, EOFError):
        return False
