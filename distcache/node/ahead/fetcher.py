"""Reading ranges for the clients of a node: from what is ahead, or from their stores.

A source is an object, a file, or a compressed shard, which is unpacked once, whole. All ranges wait
in one queue, those first that readers wait for, and one pool of threads fetches them.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import itertools
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distcache.corpus.mds.stored_shard import StoredShard, indexed_pieces
from distcache.errors import AccessDenied, CorpusError, NoSpace, StorageError
from distcache.kernels import PrefetchBuffer
from distcache.node.ahead.protocol import (
    MAX_WHOLE_BYTES,
    AheadRequest,
    ReadRequest,
    Source,
    Status,
    decoded,
    default_budget,
)
from distcache.node.ahead.sessions import Sessions
from distcache.storage.files import open_sized, open_unnamed, version_of, write_range
from distcache.storage.pace import in_background
from distcache.storage.place import FilePlace, Place, bucket_of
from distcache.storage.timeouts import limits, retried
from distcache.storage.url import is_url

if TYPE_CHECKING:
    from distcache.storage.bucket import Bucket

OPEN_FILES: Final = 512


class OpenSources:
    """Opens sources. Files stay open; objects and shards hold no descriptor.

    Parameters
    ----------
    sessions : Sessions
        Temporary credentials for objects.
    """

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._files: dict[Source, tuple[int, FilePlace]] = {}
        self._lock = threading.Lock()
        self._users: collections.Counter[Source] = collections.Counter()
        self._buckets: set[Bucket] = set()

    @contextlib.contextmanager
    def open(self, source: Source) -> Iterator[Place]:
        """Open a file or an object for the time of the block.

        Raises
        ------
        OSError, CorpusError
            If it cannot be opened, or is not the one of the version.
        """
        if is_url(source.path):
            bucket = bucket_of(source.path)
            with self._lock:
                self._buckets.add(bucket)
            yield bucket.open(source.path, source.version)
            return
        with self._lock:
            if source not in self._files:
                descriptor, size = open_sized(source.path)
                found = version_of(os.fstat(descriptor))
                if (size, found.modified) != (source.version.size, source.version.modified):
                    os.close(descriptor)
                    raise CorpusError(
                        f"{source.path}: is another file than when it was localized; localize again"
                    )
                self._files[source] = descriptor, FilePlace(source.path, descriptor)
            self._users[source] += 1
            place = self._files[source][1]
        try:
            yield place
        finally:
            with self._lock:
                self._users[source] -= 1
                unused = [file for file in self._files if not self._users[file]]
                for file in unused[: max(len(self._files) - OPEN_FILES, 0)]:
                    os.close(self._files.pop(file)[0])

    def requests(self) -> tuple[int, int]:
        """Return how many requests were sent to stores, and how many again."""
        with self._lock:
            buckets = list(self._buckets)
        return sum(b.requests for b in buckets), sum(b.retries for b in buckets)

    def read_into(self, out: NDArray[np.uint8], source: Source, begin: int) -> None:
        """Fill an array with bytes of a source; of a compressed shard, all of the raw one.

        Raises
        ------
        OSError, CorpusError
            If it cannot be read, or is not the one of the version.
        """
        for tries in itertools.count(1):
            session = self._sessions.current
            try:
                if source.codec:
                    _unpack(source, out)
                else:
                    with self.open(source) as place:
                        place.read_into(out, begin)
            except AccessDenied as error:
                is_last = tries >= self._sessions.count
                ended = "expired" in str(error)
                if not self._sessions.replace(session, has_ended=ended) or (is_last and not ended):
                    raise
            else:
                return


def _unpack(source: Source, out: NDArray[np.uint8]) -> None:
    """Unpack a shard, and compare its digest.

    Raises
    ------
    CorpusError
        If it is not the shard that was indexed.
    """
    stored = StoredShard(source.path, source.codec, source.version.size, source.raw_size)

    def once() -> None:
        done = 0
        try:
            for piece in indexed_pieces(stored, source.digest):
                out[done : done + piece.size] = piece
                done += piece.size
        except CorpusError as error:
            if isinstance(error.__cause__, OSError):
                raise error.__cause__ from error
            raise

    try:
        retried(once)
    except OSError as error:
        raise CorpusError(f"{source.path}: cannot be read: {error.strerror or error}") from error


UNPACKERS: Final = 8  # shards that are unpacked at a time, at most; a quarter of the cores
AHEAD_THREADS: Final = 48  # that read ahead; a store's pace may allow fewer requests at a time
URGENT_THREADS: Final = 16  # that only fetch what a reader waits for
FEWEST_THREADS: Final = 2  # of each kind, without which no fetcher starts
PAUSE: Final = 5.0  # seconds until a thread takes more, after it could not read ahead
LISTEN: Final = 30.0  # seconds for which a thread waits for work
KEPT_ROOM: Final = 256 << 10  # bytes that a thread keeps for its answers
# What `PrefetchBuffer.fetch` says of a range.
FAILED: Final = 1
LATE: Final = 2
DAMAGED: Final = 3


class Taken(NamedTuple):
    """A range that a thread has taken from the buffer."""

    id: int
    source: int
    begin: int
    size: int
    urgent: bool  # whether a reader waits for it


class Fetcher:
    """Reads ranges for clients.

    Parameters
    ----------
    directory : Path
        Directory on whose filesystem the ranges are that were read ahead.

    Raises
    ------
    NoSpace
        If not even a few threads can be started.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = open_unnamed(directory)
        self.buffer = PrefetchBuffer(self._file)
        self.buffer.set_unpackers(min(max(len(os.sched_getaffinity(0)) // 4, 2), UNPACKERS))
        self.sessions = Sessions()
        self._places = OpenSources(self.sessions)
        self._lock = threading.Lock()
        self._sources: list[Source] = []
        self._numbers: dict[Source, int] = {}
        self._errors: dict[int, Exception] = {}  # the last one of each source
        self._closed = threading.Event()
        self._fetched = self._used = 0
        self._note = ""
        self._threads: list[threading.Thread] = []
        for count, ahead in ((URGENT_THREADS, False), (AHEAD_THREADS, True)):
            self._start(count, ahead=ahead)

    def _start(self, count: int, *, ahead: bool) -> None:
        """Start threads now, so that none that is needed later can fail; or as many as there are.

        Raises
        ------
        NoSpace
            If not even a few can be started.
        """
        for number in range(count):
            thread = threading.Thread(target=self._work, args=(ahead,), daemon=True)
            try:
                thread.start()
            except RuntimeError:
                if number < FEWEST_THREADS:
                    self.close()
                    raise NoSpace(
                        "the fetcher cannot start threads; allow more processes"
                    ) from None
                return
            self._threads.append(thread)

    def close(self) -> None:
        """End all threads, and remove what is ahead."""
        self._closed.set()
        self.buffer.close()
        for thread in self._threads:
            thread.join(1.0)
        if not any(thread.is_alive() for thread in self._threads):
            os.close(self._file)  # else it ends with the process

    def announce(self, stream: int, request: AheadRequest) -> None:
        """Read ranges ahead."""
        ranges = self._numbered(request.sources, decoded(request.ranges, 3))
        ends = np.ascontiguousarray(decoded(request.ends, 1)[:, 0])
        try:
            self.buffer.announce(stream, ranges, ends, request.budget)
        except IndexError as error:
            raise ValueError(str(error)) from error

    def read(self, request: ReadRequest, descriptors: Sequence[int]) -> None:
        """Write ranges into descriptors, at their own offsets.

        Raises
        ------
        StorageError
            If a store does not answer, or refuses.
        OSError, CorpusError
            If a file cannot be read, or is another one.
        """
        if len(descriptors) != len(request.sources):
            raise ValueError("there is not a descriptor for each source")
        self.buffer.finish_readings(decoded(request.readings, 2))
        local = decoded(request.ranges, 3)
        ranges = self._numbered(request.sources, local)
        files = np.array(descriptors, np.int32)[local[:, 0]]
        try:
            # Longer than a thread asks its store, whose error says more.
            outcome = self.buffer.fetch(ranges, files, 2 * limits().object_store)
        except IndexError as error:
            raise ValueError(str(error)) from error
        for number in np.flatnonzero(outcome).tolist():
            self._require(outcome[number], ranges[number].tolist(), int(files[number]))
        with self._lock:
            self._used += int(ranges[:, 2].sum())

    def _numbered(self, sources: Sequence[Source], ranges: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return ranges of a message, with the numbers that their sources have here."""
        own = ranges[:, 0]
        if len(own) and not 0 <= own.min() <= own.max() < len(sources):
            raise ValueError("a range is not of any source")
        numbers = np.array([self._number_of(source) for source in sources], np.int64)
        return np.column_stack((numbers[own], ranges[:, 1:])) if len(own) else ranges

    def _number_of(self, source: Source) -> int:
        with self._lock:
            if source not in self._numbers:
                is_packed = bool(source.codec)
                if is_packed:  # what nobody announces stays ahead, too
                    self.buffer.set_usual_budget(default_budget(self._directory))
                whole = source.size if is_packed or source.size <= MAX_WHOLE_BYTES else 0
                self._numbers[source] = self.buffer.add_source(whole, is_packed)
                self._sources.append(source)
            return self._numbers[source]

    def _require(self, outcome: int, wanted: list[int], file: int) -> None:
        """Raise the error of a range that was not copied; read one again that the disk damaged."""
        source, begin, size = wanted
        path = self._sources[source].path
        if outcome == FAILED:
            raise self._errors.get(source) or StorageError(path, "the fetcher ends")
        if outcome == LATE:
            longest = 2 * limits().object_store
            raise StorageError(path, f"no answer in {longest:.0f} s; {self._note}")
        if outcome != DAMAGED:
            raise OSError(errno.EBADF, "what is read cannot be handed over", path)
        first, last = begin, begin + size
        if self._sources[source].codec:
            first, last = 0, self._sources[source].size
        data = np.empty(last - first, np.uint8)
        self._read_into(data, source, first)
        write_range(file, begin, data[begin - first :][:size])

    def _read_into(self, out: NDArray[np.uint8], number: int, begin: int) -> None:
        source = self._sources[number]
        self._places.read_into(out, source, begin)
        with self._lock:
            self._fetched += source.version.size if source.codec else out.size

    def _work(self, ahead: bool) -> None:
        """Fetch what is taken, until the fetcher ends. An error is left to the readers."""
        kept = np.empty(KEPT_ROOM, np.uint8)
        while not self._closed.is_set():
            entries = [Taken(*entry) for entry in self.buffer.take(LISTEN, ahead)]
            if not entries:
                continue
            source, begin, urgent = entries[0].source, entries[0].begin, entries[0].urgent
            size = entries[-1].begin + entries[-1].size - begin
            room = kept[:size] if size <= kept.size else np.empty(size, np.uint8)
            try:
                with contextlib.nullcontext() if urgent else in_background():
                    self._read_into(room, source, begin)
            except Exception as error:  # noqa: BLE001  its readers would wait for this thread
                self._errors[source], self._note = error, str(error)
                for entry in entries:
                    self.buffer.fail(entry.id)
                if not urgent:  # a store that refuses is not asked for all that comes next
                    self._closed.wait(PAUSE)
            else:
                for entry in entries:
                    self.buffer.store(entry.id, room[entry.begin - begin :][: entry.size])
            del room  # of a whole object or shard: a thread that waits holds little

    def status(self, clients: int) -> Status:
        """Return how it is."""
        ahead = self.buffer.status()
        requests, retries = self._places.requests()
        return Status(
            process=os.getpid(),
            clients=clients,
            streams=ahead["streams"],
            budget=ahead["budget"],
            held=ahead["used"],
            queued=ahead["queued"],
            ahead=ahead["held"],
            hits=ahead["hits"],
            misses=ahead["misses"],
            cores=len(os.sched_getaffinity(0)),
            fetched=self._fetched,
            used=self._used,
            requests=requests,
            retries=retries,
            note=self._note or (os.strerror(ahead["error"]) if ahead["error"] else ""),
        )
