"""Whole objects that are copied onto the node's disk behind training, at a share of the link.

A copy has the name, the digests and the unfinished file of `localize --bin copy`, which continues
what is left of it, and verifies it. Ranges of what has arrived are read from the unfinished file;
a file with its final name is complete, and read by training itself.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from distcache.corpus import bin_path
from distcache.errors import CorpusError, DistcacheError, NoSpace, StorageError
from distcache.node.ahead.protocol import Source
from distcache.node.manifest import UNIT, digests_path
from distcache.node.staged_files import DIGEST
from distcache.node.store import Store, part_of
from distcache.storage.files import (
    closing_fd,
    is_plain_file_of,
    no_space_as_error,
    open_regular,
    read_range,
    sync_directory,
    version_of,
    write_range,
)
from distcache.storage.pace import in_background
from distcache.storage.place import Place
from distcache.storage.ranges import PIECE
from distcache.storage.space import allocated, require_space, reserve
from distcache.storage.url import is_url

STEM: Final = re.compile(r"[A-Za-z0-9._-]{1,150}")
AT_ONCE: Final = 4  # pieces that are fetched at a time
AGAIN: Final = 30.0  # seconds until what has failed is tried again
LEAST_SHARE: Final = 0.01
MOST_BYTES: Final = 1 << 48  # of an object
FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
OpenPlace = Callable[[Source], contextlib.AbstractContextManager[Place]]


class _Copy:
    """The copy of one object that is being made, or was made by this process.

    Parameters
    ----------
    final : Path
        Path of the complete copy.
    size : int
        Bytes of the object.

    Attributes
    ----------
    arrived : ndarray of bool, shape (units,)
        Units of `UNIT` bytes that are on the disk, and right.
    done : bool
        Whether the copy has its name.
    """

    def __init__(self, final: Path, size: int) -> None:
        self.final = final
        self.size = size
        self.done = is_plain_file_of(final, size)  # an earlier process has made it
        self.arrived = np.full(-(-size // UNIT), self.done)
        self._lock = threading.Lock()
        self._file = self._digests = -1
        if self.done:
            return
        self._file = os.open(part_of(final), FLAGS, 0o600)
        try:
            self._digests = os.open(digests_path(final), FLAGS, 0o600)
        except BaseException:
            self.close()
            raise

    def reserve(self, spare: int) -> None:
        """Reserve all space, if some bytes of the disk stay free.

        Raises
        ------
        NoSpace
            If the disk has not enough; then nothing of the copy stays.
        """
        written = allocated(part_of(self.final))
        advice = "ranges of it are read"
        require_space(self.final.parent, self.size, advice, spare=spare, written=written)
        try:
            reserve(self._file, self.size, part_of(self.final))
        except NoSpace:
            part_of(self.final).unlink(missing_ok=True)
            raise

    @property
    def is_open(self) -> bool:
        """Whether its files are open."""
        return self._file >= 0

    def close(self) -> None:
        """Close its files; what has arrived is read no more, unless the copy is complete."""
        with self._lock:
            self.arrived[:] = self.done
            for descriptor in (self._file, self._digests):
                if descriptor >= 0:
                    os.close(descriptor)
            self._file = self._digests = -1

    def read(self, begin: int, end: int) -> bytes | None:
        """Return bytes that have arrived; None if they are gone."""
        with contextlib.suppress(OSError, EOFError):
            with self._lock:
                if self._file >= 0:
                    return read_range(self._file, begin, end)
            with closing_fd(open_regular(self.final, follow=False)) as descriptor:
                return read_range(descriptor, begin, end)
        return None

    def bounds(self, unit: int) -> tuple[int, int]:
        """Return the bytes of a unit."""
        return UNIT * unit, min(UNIT * (unit + 1), self.size)

    def find_arrived(self) -> None:
        """Look for what an earlier process has copied, by its digests."""
        for unit in range(0 if self.done else len(self.arrived)):
            place = DIGEST.itemsize * unit
            with contextlib.suppress(EOFError):
                known = read_range(self._digests, place, place + DIGEST.itemsize)
                if any(known):
                    data = read_range(self._file, *self.bounds(unit))
                    self.arrived[unit] = _digest(data) == known

    def store(self, unit: int, data: NDArray[np.uint8]) -> None:
        """Write a unit, then its digest."""
        write_range(self._file, UNIT * unit, data)
        os.posix_fadvise(self._file, *self.bounds(unit), os.POSIX_FADV_DONTNEED)
        digest = np.frombuffer(_digest(data), np.uint8)
        write_range(self._digests, DIGEST.itemsize * unit, digest)
        self.arrived[unit] = True

    def finish(self) -> None:
        """Give it its final name, once everything is on the disk.

        Raises
        ------
        DistcacheError
            If its files were removed meanwhile: those of their names are another process's.
        """
        os.fsync(self._file)
        os.fsync(self._digests)
        for descriptor, path in (
            (self._file, part_of(self.final)),
            (self._digests, digests_path(self.final)),
        ):
            if not path.exists() or not os.path.samestat(os.fstat(descriptor), os.lstat(path)):
                raise DistcacheError(f"{path}: was removed while it was written")
        os.replace(part_of(self.final), self.final)
        sync_directory(self.final.parent)
        self.done = True


def _digest(data: Any) -> bytes:
    return np.array([xxhash.xxh3_64_intdigest(data)], DIGEST).tobytes()


class Copier:
    """Copies objects one after the other, in a thread; one that fails is tried again later.

    Parameters
    ----------
    store : Store
        Store of the node.
    open_place : callable
        Opens a source for reading, as a context manager.
    """

    def __init__(self, store: Store, open_place: OpenPlace) -> None:
        self._store = store
        self._open_place = open_place
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[Source | None] = queue.SimpleQueue()
        self._known: dict[str, Source] = {}  # by the names of their copies
        self._copies: dict[str, _Copy] = {}  # whose turn has come
        self._failed: dict[str, float] = {}  # when they have
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self.note = ""

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join(1.0)

    def add(self, source: Source) -> None:
        """Copy an object, after those that were added before; again, if its copy was removed.

        Raises
        ------
        ValueError
            If its copy has no sensible name.
        """
        sound = LEAST_SHARE <= source.share <= 1 and 0 < source.version.size <= MOST_BYTES
        sound = sound and 0 <= source.reserve <= MOST_BYTES
        if not STEM.fullmatch(source.stem) or not sound:
            raise ValueError("a copy has no sensible name, size or share of the link")
        with self._lock:
            copy = self._copies.get(source.stem)
            is_gone = copy is not None and copy.done and not is_plain_file_of(copy.final, copy.size)
            if source.stem in self._known and not is_gone:
                return
            self._copies.pop(source.stem, None)
            self._known[source.stem] = source
            self._queue.put(source)
            if self._thread is None:
                thread = threading.Thread(target=self._copy_all, daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # the node has no more threads
                    self.note = f"nothing is copied: {error}"
                else:
                    self._thread = thread

    def read(
        self, sources: Sequence[Source], ranges: NDArray[np.int64], files: NDArray[np.int32]
    ) -> NDArray[np.bool_]:
        """Copy those ranges into files, at their own offsets, that have arrived; return which.

        Parameters
        ----------
        sources : sequence of Source
            Sources of the ranges.
        ranges : ndarray of int64, shape (ranges, 3)
            Number of the source, first byte, bytes.
        files : ndarray of int32, shape (ranges,)
            Descriptor of each range's file.
        """
        found = self.have_arrived(sources, ranges)
        for number in np.flatnonzero(found).tolist():
            source, begin, size = ranges[number].tolist()
            data = self._copies[sources[source].stem].read(begin, begin + size)
            if data is None:
                found[number] = False
            else:
                write_range(int(files[number]), begin, data)
        return found

    def have_arrived(
        self, sources: Sequence[Source], ranges: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Return which ranges have arrived."""
        found = np.zeros(len(ranges), bool)
        for number, source in enumerate(sources):
            copy = self._copies.get(source.stem)
            if copy is not None and source.stem:
                own = np.flatnonzero(ranges[:, 0] == number)
                first = ranges[own, 1] // UNIT
                last = (ranges[own, 1] + ranges[own, 2] - 1) // UNIT
                before = np.concatenate(([0], np.cumsum(~copy.arrived)))
                inside = last < len(copy.arrived)
                found[own[inside]] = before[last[inside] + 1] == before[first[inside]]
        return found

    def progress(self) -> tuple[int, int]:
        """Return the bytes that have arrived, and those of all objects."""
        arrived = 0
        for copy in list(self._copies.values()):
            units = np.flatnonzero(copy.arrived).tolist()
            some = sum(end - begin for begin, end in map(copy.bounds, units))
            arrived += copy.size if copy.done else some
        return arrived, sum(source.version.size for source in list(self._known.values()))

    def _copy_all(self) -> None:
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="copying") as pool:
            while not self._closed.is_set():
                try:
                    source = self._queue.get(timeout=1.0)
                except queue.Empty:
                    self._queue_failed()
                    continue
                if source is None:
                    return
                try:
                    self._copy(source, pool)
                except Exception as error:  # noqa: BLE001  the next object may be copied
                    self.note = f"{source.path}: is not copied: {error}"
                    if not isinstance(error, CorpusError):  # which does not pass
                        self._failed[source.stem] = time.monotonic()

    def _queue_failed(self) -> None:
        """Let what has failed a while ago be tried again."""
        until = time.monotonic() - AGAIN
        for stem in [stem for stem, when in self._failed.items() if when <= until]:
            del self._failed[stem]
            self._queue.put(self._known[stem])

    def _copy(self, source: Source, pool: ThreadPoolExecutor) -> None:
        """Copy an object; training reads its ranges where this ends early.

        Raises
        ------
        NoSpace
            If the disk does not hold it.
        StorageError
            If the store does not answer, or refuses.
        CorpusError
            If it is another one than it was.
        """
        final = Path(bin_path(self._store.prefix(source.stem)))
        copy = self._copies.get(source.stem)
        if copy is None or not copy.is_open:
            copy = self._copies[source.stem] = _Copy(final, source.version.size)
            copy.find_arrived()
        try:
            if not copy.done:
                self._fill(copy, source, pool)
        except StorageError:
            if not copy.arrived.any():
                copy.close()
            raise  # what has arrived is read until the next attempt
        except BaseException:
            copy.close()
            raise
        copy.close()

    def _fill(self, copy: _Copy, source: Source, pool: ThreadPoolExecutor) -> None:
        with no_space_as_error(copy.final):
            copy.reserve(source.reserve)
            for unit in np.flatnonzero(~copy.arrived).tolist():
                begin = time.monotonic()
                copy.store(unit, self._fetch(source, *copy.bounds(unit), pool))
                took = time.monotonic() - begin
                if self._closed.wait(took / source.share - took):
                    return
            _require_unchanged(source)
            copy.finish()

    def _fetch(
        self, source: Source, begin: int, end: int, pool: ThreadPoolExecutor
    ) -> NDArray[np.uint8]:
        out = np.empty(end - begin, np.uint8)

        def fetch(at: int) -> None:
            with in_background(), self._open_place(source) as place:
                place.read_into(out[at : at + PIECE], begin + at)

        list(pool.map(fetch, range(0, out.size, PIECE)))
        return out


def _require_unchanged(source: Source) -> None:
    """Refuse a file that has changed since it was localized; a store compares each answer.

    Raises
    ------
    CorpusError
        If it has.
    """
    if is_url(source.path):
        return
    found = version_of(os.stat(source.path))
    if (found.size, found.modified) != (source.version.size, source.version.modified):
        raise CorpusError(f"{source.path}: has changed while it was copied; localize it again")
