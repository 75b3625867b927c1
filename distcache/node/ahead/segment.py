"""A segment of the read-ahead log: a file of ranges in the order of use, and the place of each.

Beside the file is a journal with a line for each range, so that another fetcher can take up
what one that was killed has left. The bytes are compared with their digest whenever they are read.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import xxhash

from distcache.node.ahead.protocol import Source
from distcache.storage.files import read_range, write_range
from distcache.storage.journal import Journal, read_journal

LOG: Final = ".log"
JOURNAL: Final = ".jsonl"


class RangeKey(NamedTuple):
    """A range of bytes of one version of an object."""

    source: Source
    begin: int
    size: int


class Held(msgspec.Struct, frozen=True):
    """A range that a segment has, from a byte of its file on, with its XXH3-64."""

    source: Source
    begin: int
    size: int
    offset: int
    digest: int

    @property
    def key(self) -> RangeKey:
        """Which range it is."""
        return RangeKey(self.source, self.begin, self.size)


class LogSegment:
    """A file of the log; its owner holds a lock around all but reading and writing.

    Parameters
    ----------
    directory : Path
        Directory of the log.
    number : int
        Number in the name of the file.
    earlier : bool
        Whether another fetcher has left it.
    """

    def __init__(self, directory: Path, number: int, *, earlier: bool = False) -> None:
        self.number = number
        self._path = directory / f"{number:08d}{LOG}"
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        flags |= 0 if earlier else os.O_CREAT | os.O_EXCL
        self._descriptor = os.open(self._path, flags, 0o600)
        self._journal: Journal | None = None
        if not earlier:
            try:
                self._journal = Journal(self._path.with_suffix(JOURNAL))
            except BaseException:
                os.close(self._descriptor)
                _unlink(self._path)
                raise
        self.keys: set[RangeKey] = set()
        self.last = 0  # the number of its last range in its stream
        self.allocated = 0  # bytes of the file
        self.cost = 0  # and those of the journal's lines
        self.unread = 0  # ranges in it that somebody will read
        self.users = 0  # threads that read it, or write to it
        self._writers = 0
        self.sealed = earlier
        self.dropped = False
        self.removed = False

    def allocate(self, key: RangeKey, number: int) -> int:
        """Return where the next range goes, of a number in its stream; `written` ends it."""
        begin = self.allocated
        self.allocated += key.size
        self.keys.add(key)
        self.last = max(self.last, number)
        self.unread += 1
        self.users += 1
        self._writers += 1
        return begin

    def write(self, key: RangeKey, offset: int, data: memoryview) -> Held:
        """Write a range to its place, and note it in the journal.

        Raises
        ------
        OSError
            If the disk is full.
        """
        write_range(self._descriptor, offset, data)
        held = Held(*key, offset, xxhash.xxh3_64_intdigest(data))
        assert self._journal is not None, "it is open as long as somebody writes"
        self._journal.append(held)
        return held

    def written(self) -> None:
        """Note the end of a writing, whether it has succeeded or not."""
        self.users -= 1
        self._writers -= 1
        if self.sealed and not self._writers:
            self._close_journal()

    def _close_journal(self) -> None:
        if self._journal is not None:
            self._journal.__exit__()
            self._journal = None

    def read(self, held: Held) -> bytes | None:
        """Return a range, or None if it is not what was written."""
        try:
            data = read_range(self._descriptor, held.offset, held.offset + held.size)
        except (OSError, EOFError):
            return None
        return data if xxhash.xxh3_64_intdigest(data) == held.digest else None

    def remove(self) -> None:
        """Give its space back."""
        self.removed = True
        self._close_journal()
        os.close(self._descriptor)
        _unlink(self._path)


def _unlink(log: Path) -> None:
    """Remove a segment's file, then its journal: without the file that says nothing."""
    with contextlib.suppress(IsADirectoryError, PermissionError):  # nobody's of ours
        log.unlink(missing_ok=True)
        log.with_suffix(JOURNAL).unlink(missing_ok=True)


def earlier_segments(directory: Path) -> Iterator[tuple[LogSegment, list[Held]]]:
    """Yield what a fetcher that was killed has left; what no journal names is removed."""
    for journal in directory.glob(f"*{JOURNAL}"):
        if not journal.with_suffix(LOG).exists():
            _unlink(journal.with_suffix(LOG))
    for path in sorted(directory.glob(f"*{LOG}")):
        if path.is_symlink() or not path.is_file() or not path.stem.isdecimal():
            continue
        size = path.stat().st_size
        found = read_journal(path.with_suffix(JOURNAL), Held)
        held = [entry for entry in found if 0 <= entry.offset <= size - entry.size]
        if not held:
            _unlink(path)
            continue
        segment = LogSegment(directory, int(path.stem), earlier=True)
        segment.allocated = size
        segment.keys.update(entry.key for entry in held)
        yield segment, held
