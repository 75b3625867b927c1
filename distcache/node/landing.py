"""Where units arrive: files that have no name yet, and digests over what was written to them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from distcache.activity import moved
from distcache.cache.digests import read_pieces
from distcache.cache.format import HEADER_SIZE
from distcache.errors import CacheCorrupt, CorpusError, DistcacheError
from distcache.files import (
    is_plain_file,
    no_space_as_error,
    open_regular,
    sync_directory,
    write_range,
)
from distcache.node.space import reserve
from distcache.node.wanted import CACHE, Unit, Wanted

__all__ = ["Landing", "Unreadable", "differs", "digest_of", "read_shared", "unit_matches"]


def digest_of(unit: Unit) -> Any:
    """Return an empty digest of a unit's kind."""
    return xxhash.xxh3_64() if len(unit.digest) == 16 else xxhash.xxh3_128()


def unit_matches(descriptor: int, unit: Unit) -> bool:
    """Read a unit from an open file, and tell whether it is what its digest says."""
    digest = digest_of(unit)
    try:
        for piece in read_pieces(descriptor, unit.begin, unit.end):
            digest.update(piece.data)
    except (CacheCorrupt, OSError):
        return False
    return bool(digest.hexdigest() == unit.digest)


def differs(wanted: Wanted, unit: Unit) -> DistcacheError:
    """Return the error that says that a shared file is not what the cache says."""
    path = wanted.files[unit.file].shared
    if unit.file == CACHE:
        return CacheCorrupt(
            f"{path}: bytes {unit.begin} to {unit.end} differ from their digest; see "
            "`distcache verify`, then move the cache away and build it again"
        )
    return CorpusError(
        f"{path}: is not the file that the cache was built from: its digest differs; build again"
    )


class Unreadable(DistcacheError):
    """A file to copy from cannot be read."""


class Truncated(Unreadable):
    """A file to copy from is too short."""

    exit_code = CorpusError.exit_code


def read_shared(path: str, begin: int, end: int) -> Iterator[NDArray[np.uint8]]:
    """Yield bytes of a file, in pieces that are valid until the next.

    Raises
    ------
    Unreadable
        If it cannot be read; `Truncated` if it is too short.
    """
    try:
        descriptor = open_regular(path)
    except OSError as error:
        raise Unreadable(f"{path}: cannot be read: {error.strerror}") from error
    try:
        pieces = read_pieces(descriptor, begin, end)
        while True:
            try:
                piece = next(pieces, None)
            except CacheCorrupt as error:
                raise Truncated(f"{path}: {error}; it was cut short while it was read") from error
            except OSError as error:
                raise Unreadable(f"{path}: cannot be read: {error.strerror}") from error
            if piece is None:
                return
            yield piece
    finally:
        os.close(descriptor)


class Landing:
    """The unfinished files of one localization.

    Parameters
    ----------
    wanted : Wanted
        What is to arrive.
    """

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._made: list[Path] = []
        self._lock = threading.Lock()
        self.written = 0

    def make(self, file: int) -> None:
        """Make an unfinished file with all of its space, or take the one that was left.

        Raises
        ------
        NoSpace
            If the disk has not enough; call `undo` then.
        """
        target = self._wanted.files[file]
        if not os.path.lexists(target.part):
            self._made.append(target.part)
        elif not is_plain_file(target.part):
            raise DistcacheError(f"{target.part}: is not a file that distcache has made; remove it")
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(target.part, flags, 0o600)
        try:
            reserve(descriptor, target.size, target.part)
        finally:
            os.close(descriptor)

    def undo(self) -> None:
        """Remove the files that `make` made."""
        for path in self._made:
            path.unlink(missing_ok=True)

    def open(self, file: int) -> int:
        """Return a descriptor to write an unfinished file; the caller closes it."""
        return os.open(self._wanted.files[file].part, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def write(self, descriptor: int, offset: int, data: NDArray[np.uint8]) -> None:
        """Write bytes of an unfinished file. From any thread.

        Raises
        ------
        NoSpace
            If the disk is full all the same.
        """
        with no_space_as_error(self._wanted.files[CACHE].final.parent):
            write_range(descriptor, offset, data)
        with self._lock:
            self.written += data.size

    def begin_writeback(self, descriptor: int, unit: Unit) -> None:
        """Let the disk begin with a unit, so that syncing waits for less."""
        os.posix_fadvise(descriptor, unit.begin, unit.size, os.POSIX_FADV_DONTNEED)

    def copy(self, unit: Unit, path: str, begin: int, advance: Callable[[float], None]) -> bool:
        """Copy a unit from a file, where it starts at a byte; tell whether it is right.

        Raises
        ------
        Unreadable
            If the file cannot be read.
        """
        digest = digest_of(unit)
        offset = unit.begin
        target = self.open(unit.file)
        try:
            for piece in read_shared(path, begin, begin + unit.size):
                digest.update(piece.data)
                self.write(target, offset, piece)
                offset += piece.size
                advance(piece.size)
            self.begin_writeback(target, unit)
        finally:
            os.close(target)
        return bool(digest.hexdigest() == unit.digest)

    def finish(self, file: int) -> None:
        """Complete a file whose units are all right: sync it and give it its name."""
        target = self._wanted.files[file]
        descriptor = os.open(target.part, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if file == CACHE:
                self._write_frame(descriptor)
            os.fsync(descriptor)
            moved()
            if target.modified:
                os.utime(descriptor, ns=(target.modified, target.modified))
        finally:
            os.close(descriptor)
        os.replace(target.part, target.final)

    def sync_names(self) -> None:
        """Sync the directories, so that the new names survive a crash."""
        for directory in {file.final.parent for file in self._wanted.files}:
            sync_directory(directory)

    def _write_frame(self, descriptor: int) -> None:
        """Write what is in no unit: the header and the tables of the cache."""
        contents = self._wanted.contents
        header = np.frombuffer(contents.header.pack(), np.uint8)
        assert header.size == HEADER_SIZE
        self.write(descriptor, 0, header)
        self.write(
            descriptor, contents.header.tables_begin, np.frombuffer(contents.tables, np.uint8)
        )
