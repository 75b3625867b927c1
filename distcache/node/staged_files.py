"""The unfinished files of a localization: reserve, write, verify and name them."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from distcache.cache.digests import read_pieces
from distcache.cache.format import HEADER_SIZE, LEAF_SIZE
from distcache.corpus.mds.codecs import MemorySource, unpack
from distcache.corpus.mds.stored_shard import StoredShard, raw_pieces
from distcache.errors import CacheCorrupt, CorpusError, DistcacheError
from distcache.node.manifest import CACHE, UNIT_BYTES, Block, File, Manifest, ShardSource, origin_of
from distcache.node.records import Ready
from distcache.storage.files import (
    FileVersion,
    closing_fd,
    is_plain_file,
    no_space_as_error,
    open_regular,
    open_to_write,
    read_range,
    set_time,
    sync_directory,
    sync_file,
    write_range,
)
from distcache.storage.place import PIECE_BYTES, open_place, pieces_of
from distcache.storage.space import reserve
from distcache.storage.url import is_url
from distcache.storage.watchdog import tick


class LocalState(msgspec.Struct, frozen=True):
    """Which of a cache's files and blocks a store has."""

    valid_files: frozenset[int]  # under their final names
    valid_blocks: frozenset[int]  # in valid files and in others
    # valid files whose time differs from the shared ones, which may have changed
    files_to_confirm: frozenset[int] = frozenset()


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
        valid = block.file in known or _is_valid(manifest.files[block.file], block)
        advance(block.size)
        return number if valid else None

    with ThreadPoolExecutor(threads) as pool:
        found = pool.map(verify, range(len(manifest.blocks)))
        blocks = frozenset(number for number in found if number is not None)
    files = set(range(len(manifest.files)))
    files -= {block.file for number, block in enumerate(manifest.blocks) if number not in blocks}
    files = {file for file in files if has_final(manifest.files[file])}
    if CACHE in files and CACHE not in known and not _frame_matches(manifest):
        files.discard(CACHE)
    differ = {file for file in files if not _has_time(manifest.files[file])}
    return LocalState(frozenset(files), blocks, frozenset(differ))


def _as_recorded(manifest: Manifest, record: Ready) -> frozenset[int]:
    """Return the files whose sizes and times are those of a record and of the shared files."""
    times = {f"{corpus.stem}.bin": corpus.bin_modified for corpus in record.corpora}
    found = {
        number
        for number, file in enumerate(manifest.files)
        if number != CACHE
        and has_final(file)
        and _has_time(file)
        and (file.kind == "whole" or os.lstat(file.final).st_mtime_ns == times.get(file.final.name))
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


DIGEST: Final = np.dtype("<u8")


def digest_of(block: Block) -> Any:
    """Return an empty digest of a block's kind."""
    return xxhash.xxh3_128() if len(block.digest) == 32 else xxhash.xxh3_64()


def block_matches(descriptor: int, block: Block) -> bool:
    """Read a block from an open file, and return whether its digest matches."""
    digest = digest_of(block)
    try:
        for piece in read_pieces(descriptor, block.begin, block.end):
            digest.update(piece.data)
    except (CacheCorrupt, OSError):
        return False
    return bool(digest.hexdigest() == block.digest)


def differs(manifest: Manifest, block: Block) -> DistcacheError:
    """Return the error for a shared file that differs from its digest."""
    path = origin_of(manifest, block).path
    if block.source is not None:
        return CorpusError(
            f"{path}: is not the shard that was indexed: its digest differs; index the data set "
            "again, and build again"
        )
    if block.file == CACHE:
        return CacheCorrupt(
            f"{path}: bytes {block.begin} to {block.end} differ from their digest; see "
            "`distcache verify`, then move the cache away and build it again"
        )
    return CorpusError(
        f"{path}: is not the file that the cache was built from: its digest differs; build again"
    )


class Unreadable(DistcacheError):
    """A file to copy from cannot be read."""


class Damaged(Unreadable):
    """A file to copy from is gone, or too short."""

    exit_code = CorpusError.exit_code


def recorded_digest(digests: Path, block: Block) -> str:
    """Return the digest of a block, or the one that a file of digests has; empty if none."""
    if block.digest:
        return block.digest
    place = DIGEST.itemsize * (block.begin // UNIT_BYTES)
    try:
        with closing_fd(open_regular(digests, follow=False)) as descriptor:
            recorded = read_range(descriptor, place, place + DIGEST.itemsize)
    except (OSError, EOFError):
        return ""
    digest = int.from_bytes(recorded, "little")
    return f"{digest:016x}" if digest else ""


def _unreadable(path: str, error: OSError) -> Unreadable:
    if error.errno == errno.ENODATA:
        return Damaged(f"{path}: {error.strerror}; it was cut short while it was read; build again")
    if isinstance(error, FileNotFoundError):
        return Damaged(f"{path}: cannot be read: {error.strerror}; put it back, or build again")
    return Unreadable(f"{path}: cannot be read: {error.strerror}")


def read_shared(
    path: str, begin: int, end: int, version: FileVersion | None = None
) -> Iterator[NDArray[np.uint8]]:
    """Yield bytes of a file or an object, in pieces that are valid until the next.

    Raises
    ------
    Unreadable
        If it cannot be read; `Damaged` if it is gone or too short.
    ObjectChanged
        If the object is of another version.
    """
    size = PIECE_BYTES if is_url(path) else LEAF_SIZE
    with contextlib.ExitStack() as stack:
        try:
            place = stack.enter_context(open_place(path, version))
            pieces = pieces_of(place, begin, end, size)
            piece = next(pieces, None)
        except OSError as error:
            raise _unreadable(path, error) from error
        while piece is not None:
            yield piece
            try:
                piece = next(pieces, None)
            except OSError as error:
                raise _unreadable(path, error) from error


def read_shared_into(
    out: NDArray[np.uint8], path: str, begin: int, version: FileVersion | None = None
) -> None:
    """Fill an array with bytes of a file or an object.

    Raises
    ------
    Unreadable, ObjectChanged
        As `read_shared`.
    """
    try:
        with open_place(path, version) as place:
            place.read_into(out, begin)
    except OSError as error:
        raise _unreadable(path, error) from error


def _shard_pieces(
    source: ShardSource, size: int, packed: bytearray | None
) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of a raw shard, from its file or from the bytes of that."""
    if packed is not None and not source.codec:
        yield np.frombuffer(packed, np.uint8)
    elif packed is not None:
        yield from unpack(source.codec, MemorySource(packed), size, source.path)
    else:
        stored = StoredShard(source.path, source.codec, source.size, size)
        try:
            yield from raw_pieces(stored)
        except OSError as error:
            raise _unreadable(source.path, error) from error


class StagedFiles:
    """The unfinished files of one localization.

    Parameters
    ----------
    manifest : Manifest
        Files and blocks to fetch.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._made: list[Path] = []
        self._lock = threading.Lock()
        self.written = 0

    def make(self, file: int) -> None:
        """Create an unfinished file with all of its space, or reopen one that was left.

        Raises
        ------
        NoSpace
            If the disk has not enough; call `undo` then.
        """
        target = self._manifest.files[file]
        if not os.path.lexists(target.part):
            self._made.append(target.part)
        elif not is_plain_file(target.part):
            raise DistcacheError(f"{target.part}: is not a file that distcache has made; remove it")
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with closing_fd(os.open(target.part, flags, 0o600)) as descriptor:
            reserve(descriptor, target.size, target.part)

    def undo(self) -> None:
        """Remove the files that `make` made."""
        for path in self._made:
            path.unlink(missing_ok=True)

    def open(self, file: int) -> int:
        """Return a descriptor to write an unfinished file, or a file that is repaired in place.

        The caller closes it.
        """
        target = self._manifest.files[file]
        return open_to_write(target.part if os.path.lexists(target.part) else target.final)

    def write(self, descriptor: int, offset: int, data: NDArray[np.uint8]) -> None:
        """Write bytes of an unfinished file. From any thread.

        Raises
        ------
        NoSpace
            If the disk is full nevertheless.
        """
        with no_space_as_error(self._manifest.files[CACHE].final.parent):
            write_range(descriptor, offset, data)
        with self._lock:
            self.written += data.size

    def begin_writeback(self, descriptor: int, block: Block) -> None:
        """Start write-back of a block early, so that the final fsync has little left to do."""
        os.posix_fadvise(descriptor, block.begin, block.size, os.POSIX_FADV_DONTNEED)

    def copy(self, block: Block, advance: Callable[[float], None]) -> bool:
        """Copy a block from the shared file or object; return whether it is valid.

        Raises
        ------
        Unreadable
            If the file cannot be read.
        """
        digest = digest_of(block)
        offset = block.begin
        origin = origin_of(self._manifest, block)
        with closing_fd(self.open(block.file)) as target:
            for piece in read_shared(origin.path, origin.begin, origin.end, origin.version):
                digest.update(piece.data)
                self.write(target, offset, piece)
                offset += piece.size
                advance(piece.size)
            self.begin_writeback(target, block)
        return self.accept(block, digest.hexdigest())

    def accept(self, block: Block, digest: str) -> bool:
        """Return whether the digest of what was written is right; record one that is not known."""
        if block.digest:
            return digest == block.digest
        path = self._manifest.files[block.file].digests
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with no_space_as_error(path), closing_fd(os.open(path, flags, 0o600)) as descriptor:
            number = np.array([int(digest, 16)], DIGEST)
            write_range(descriptor, DIGEST.itemsize * (block.begin // UNIT_BYTES), number)
        return True

    def unpack(
        self, block: Block, packed: bytearray | None, advance: Callable[[float], None]
    ) -> bool:
        """Write a shard to its place, decompressed; return whether it is valid.

        Parameters
        ----------
        block : Block
            Block of a shard.
        packed : bytearray or None
            Bytes of the shard's file; None to read it.
        advance : callable
            Receives the bytes that were written.

        Raises
        ------
        Unreadable
            If the file cannot be read.
        CorpusError
            If it does not decompress.
        """
        source = block.source
        assert source is not None, "the block is a shard"
        digest, offset = digest_of(block), block.begin
        with closing_fd(self.open(block.file)) as target:
            for piece in _shard_pieces(source, block.size, packed):
                digest.update(piece.data)
                self.write(target, offset, piece)
                offset += piece.size
                advance(piece.size)
            self.begin_writeback(target, block)
        return bool(digest.hexdigest() == block.digest)

    def finish(self, file: int) -> None:
        """Complete a file whose blocks are all valid: sync it and give it its final name."""
        target = self._manifest.files[file]
        in_place = not os.path.lexists(target.part)
        path = target.final if in_place else target.part
        with closing_fd(os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)) as descriptor:
            if file == CACHE:
                # The header and the tables are in no block.
                contents = self._manifest.contents
                header = np.frombuffer(contents.header.pack(), np.uint8)
                assert header.size == HEADER_SIZE
                self.write(descriptor, 0, header)
                tables = np.frombuffer(contents.tables, np.uint8)
                self.write(descriptor, contents.header.tables_begin, tables)
            os.fsync(descriptor)
            tick()
            if target.kind == "copy" and target.size:
                sync_file(target.digests)
            if target.modified:
                set_time(descriptor, target.modified)
        if not in_place:
            os.replace(target.part, target.final)

    def sync_names(self) -> None:
        """Sync the directories, so that the new names survive a crash."""
        for directory in {file.final.parent for file in self._manifest.files}:
            sync_directory(directory)
