"""Reading ranges for the clients of a node: copies, what is ahead, the native loop, and threads.

A source is an object, a file, or a compressed shard, which is unpacked once, whole.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distcache.errors import AccessDenied, NoSpace, StorageError
from distcache.kernels import PrefetchBuffer, RequestLoop
from distcache.node.ahead.copying import Copier
from distcache.node.ahead.open_sources import OpenSources
from distcache.node.ahead.protocol import (
    MOST_DESCRIPTORS,
    WHOLE,
    AheadRequest,
    OpenRequest,
    ReadRequest,
    Source,
    Status,
    decode_ranges,
    decoded,
    default_budget,
)
from distcache.node.store import Store
from distcache.storage.curl_library import curl_libraries
from distcache.storage.files import open_unnamed, write_range
from distcache.storage.pace import in_background
from distcache.storage.place import bucket_of
from distcache.storage.ranges import GAP, PIECE, Joined, join_ranges
from distcache.storage.timeouts import limits
from distcache.storage.url import address_of, is_url

if TYPE_CHECKING:
    from distcache.storage.bucket import ObjectAddress

UNPACK_THREADS: Final = 8  # that unpack shards, at most; a quarter of the cores
AHEAD_THREADS: Final = 48  # that read ahead; a store's pace may allow fewer requests at a time
READ_THREADS: Final = 64  # requests for what is waited for
FEWEST_THREADS: Final = 4
PAUSE: Final = 5.0  # seconds between two attempts to read ahead from a store that is away
LISTEN: Final = 30.0  # seconds for which a thread waits for work
SIGNED: Final = 3600.0  # seconds for which the address of an object is valid
AGAIN: Final = 30.0  # seconds until an address that was refused is renewed
# What `PrefetchBuffer.fetch` says of a range that it has not copied.
MISSING: Final = 1
LATE: Final = 2


class Taken(NamedTuple):
    """A range that a thread has taken from the buffer."""

    id: int
    source: int
    begin: int
    size: int


class Fetcher:
    """Reads ranges for clients: from copies, from what is ahead, or from their stores.

    Ranges of objects are fetched by a loop of native requests; what it cannot do, and ranges of
    files, by threads. Others unpack shards.

    Parameters
    ----------
    directory : Path
        Directory on whose filesystem the ranges are that were read ahead.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = open_unnamed(directory)
        self.buffer = PrefetchBuffer(self._file)
        self._loop = _request_loop(self.buffer)
        self._places = OpenSources()
        self._copier = Copier(Store(directory.parent), self._places.open)
        self._readers = _started_threads()
        self._lock = threading.Lock()
        self._sources: list[Source] = []
        self._numbers: dict[Source, int] = {}
        self._read_in_place = set[int]()  # shards, by number; all of each counts as used, once
        self._aimed: dict[int, float] = {}  # when the address of each source was found
        self._probes: dict[str, threading.Lock] = collections.defaultdict(threading.Lock)
        self._ahead: list[threading.Thread] = []
        self._unpackers: list[threading.Thread] = []
        self._closed = False
        self._fetched = 0
        self.used = 0
        self.note = ""

    def close(self) -> None:
        """End all threads, and remove what is ahead."""
        self._closed = True
        if self._loop is not None:
            self._loop.close()
        self.buffer.close()
        self._copier.close()
        self._readers.shutdown(cancel_futures=True)
        threads = [*self._ahead, *self._unpackers]
        for thread in threads:
            thread.join(1.0)
        if not any(thread.is_alive() for thread in threads):
            os.close(self._file)  # else it ends with the process

    def announce(self, stream: int, request: AheadRequest) -> None:
        """Read ranges ahead."""
        local = decode_ranges(request.ranges, len(request.sources))
        self._copy_behind(request.sources)
        ranges = self._numbered(request.sources, local)
        ends = decoded(request.ends, 1)[:, 0]
        if (arrived := self._copier.have_arrived(request.sources, local)).any():
            left = np.concatenate(([0], np.cumsum(~arrived)))
            if len(ends) and not 0 <= ends.min() <= ends.max() < len(left):
                raise ValueError("readings do not fit their ranges")
            ranges, ends = ranges[~arrived], left[ends]
        try:
            self.buffer.announce(stream, ranges, np.ascontiguousarray(ends), request.budget)
        except IndexError as error:
            raise ValueError(str(error)) from error
        self._start_threads(self._ahead, AHEAD_THREADS, self._read_ahead)

    def _start_threads(
        self, threads: list[threading.Thread], count: int, action: Callable[[], None]
    ) -> None:
        """Start threads, or as many as the node has."""
        with self._lock:
            while len(threads) < count:
                thread = threading.Thread(target=action, daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the node has no more threads
                    if not threads:
                        raise
                    return
                threads.append(thread)

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
        local = decode_ranges(request.ranges, len(request.sources))
        self._copy_behind(request.sources)
        self.buffer.finish_readings(decoded(request.readings, 2))
        ranges = self._numbered(request.sources, local)
        used = int(local[:, 2].sum())
        files = np.array(descriptors, np.int32)[local[:, 0]]
        try:
            left = ~self._copier.read(request.sources, local, files)
            local, ranges, files = local[left], ranges[left], files[left]
            outcome = np.array(self.buffer.fetch(ranges, files, limits().object_store), np.int64)
            self._require_copied(request.sources, local, outcome)
            self._fetch_missing(request.sources, local[outcome == MISSING], descriptors)
        except IndexError as error:
            raise ValueError(str(error)) from error
        with self._lock:
            self.used += used

    def open_shards(self, request: OpenRequest) -> list[int]:
        """Return a descriptor of each shard, or -1: then `read` says why."""
        if len(request.sources) > MOST_DESCRIPTORS:
            raise ValueError("more shards than a message carries")
        self.buffer.finish_readings(decoded(request.readings, 2))
        numbers = np.array([self._number_of(source) for source in request.sources], np.int64)
        try:
            files = self.buffer.open_shards(numbers, limits().object_store)
        except IndexError as error:
            raise ValueError(str(error)) from error
        with self._lock:
            for number, file in zip(numbers.tolist(), files, strict=True):
                if file >= 0 and number not in self._read_in_place:
                    self._read_in_place.add(number)
                    self.used += self._sources[number].size
        return files

    def _copy_behind(self, sources: Sequence[Source]) -> None:
        for source in sources:
            if source.stem:
                self._copier.add(source)

    def _numbered(self, sources: Sequence[Source], ranges: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return ranges of a message, with the numbers that their sources have here."""
        ranges = ranges.copy()
        numbers = np.array([self._number_of(source) for source in sources], np.int64)
        ranges[:, 0] = numbers[ranges[:, 0]]
        return ranges

    def _number_of(self, source: Source) -> int:
        with self._lock:
            if source in self._numbers:
                return self._numbers[source]
        address = self._address_of(source)
        if source.codec:
            self._start_unpackers()
        with self._lock:
            if source not in self._numbers:  # another thread may have been faster
                fetcher = "unpackers" if source.codec else "loop" if address else "threads"
                whole = source.size if source.codec or source.size <= WHOLE else 0
                number = self.buffer.add_source(fetcher, whole)
                self._sources.append(source)
                self._numbers[source] = number
                if address is not None:
                    self._aim(number, address)
            return self._numbers[source]

    def _start_unpackers(self) -> None:
        """Start the threads that unpack shards, also those that nobody has announced."""
        if not self._unpackers:
            self.buffer.set_usual_budget(default_budget(self._directory))
            cores = len(os.sched_getaffinity(0))
            count = min(max(cores // 4, 2), UNPACK_THREADS)
            self._start_threads(self._unpackers, count, self._unpack_ahead)

    def _address_of(self, source: Source) -> ObjectAddress | None:
        """Return where the loop of requests can read an object, or None if it cannot."""
        # A weak ETag cannot be a condition.
        if self._loop is None or not is_url(source.path) or source.version.tag[:1] != '"':
            return None
        return bucket_of(source.path).address(source.path, SIGNED)

    def _aim(self, number: int, address: ObjectAddress) -> None:
        """Tell the loop of requests where an object is, for as long as its signature is valid."""
        assert self._loop is not None, "it fetches this source"
        version = self._sources[number].version
        self._aimed[number] = time.monotonic()
        self._loop.set_target(
            number,
            address.origin,
            address.path,
            version.tag,
            version.size,
            0.9 * SIGNED,
            address.certificates,
        )

    def _aim_again(self, number: int) -> None:
        """Renew an address that has expired or was refused, after an answer to a thread."""
        with self._lock:
            if (
                self._loop is None
                or number not in self._aimed
                or self._loop.has_target(number)
                or time.monotonic() - self._aimed[number] < AGAIN
            ):
                return
            self._aimed[number] = time.monotonic()  # no other thread renews it, too
        address = self._address_of(self._sources[number])
        if address is not None:
            self._aim(number, address)

    def _require_copied(
        self, sources: Sequence[Source], ranges: NDArray[np.int64], outcome: NDArray[np.int64]
    ) -> None:
        """Raise the error of a range that came too late, or whose file could not be written."""
        wrong = np.flatnonzero(outcome >= LATE)
        if not len(wrong):
            return
        path = sources[ranges[wrong[0], 0]].path
        if outcome[wrong[0]] == LATE:
            why = f"no answer in {limits().object_store:.0f} s; {self.note}"
            raise StorageError(path, why)
        raise OSError(errno.EBADF, "what is read cannot be handed over", path)

    def _fetch_missing(
        self, sources: Sequence[Source], ranges: NDArray[np.int64], targets: Sequence[int]
    ) -> None:
        """Fetch what is not ahead into descriptors."""
        wanted: dict[int, list[tuple[int, int]]] = {}
        for source, begin, size in ranges.tolist():
            wanted.setdefault(source, []).append((begin, size))
        pending = [
            self._readers.submit(self._copy, sources[source], joined, targets[source])
            for source, own in wanted.items()
            for joined in (
                [Joined(0, sources[source].size, [])]
                if sources[source].codec
                else join_ranges(own, GAP, PIECE)
            )
        ]
        # Nothing may write to a descriptor after the caller has closed it.
        problems = [error for future in pending if (error := future.exception()) is not None]
        if problems:
            raise problems[0]

    def _copy(self, source: Source, joined: Joined, target: int) -> None:
        write_range(target, joined.begin, self._fetch(source, joined.begin, joined.end))

    def _fetch(self, source: Source, begin: int, end: int) -> NDArray[np.uint8]:
        out = np.empty(end - begin, np.uint8)
        self._fetch_into(out, source, begin)
        return out

    def _fetch_into(self, out: NDArray[np.uint8], source: Source, begin: int) -> None:
        self._places.read_into(out, source, begin)
        with self._lock:
            self._fetched += source.version.size if source.codec else out.size
        self._aim_again(self._numbers.get(source, -1))

    def _unpack_ahead(self) -> None:
        """Unpack what comes next, until the fetcher ends. An error is left to the readers."""
        room = np.empty(0, np.uint8)
        while not self._closed:
            for entry in (Taken(*found) for found in self.buffer.take(LISTEN, "unpackers")):
                try:
                    if room.size < entry.size:
                        room = np.empty(entry.size, np.uint8)
                    data = room[: entry.size]
                    self._fetch_into(data, self._sources[entry.source], 0)
                except Exception as error:  # noqa: BLE001  its readers would wait for this thread
                    self._fail([entry], error)
                else:
                    file = -1  # it is handed to its readers from memory
                    with contextlib.suppress(OSError):
                        file = open_unnamed(self._directory)
                    self.buffer.store(entry.id, data, file)

    def _read_ahead(self) -> None:
        """Fetch what comes next, until the fetcher ends."""
        while not self._closed:
            if taken := self.buffer.take(LISTEN):
                self._fetch_ahead([Taken(*entry) for entry in taken])

    def _fetch_ahead(self, entries: list[Taken]) -> None:
        """Fetch ranges that are close together; a store that is away or refuses is waited for.

        Then one thread at a time asks: a store that comes back is not met by all of every node's.
        A reader that waits for a range that is refused asks for it, and gets the refusal.
        """
        source = self._sources[entries[0].source]
        turn: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        while entries:
            begin, end = entries[0].begin, entries[-1].begin + entries[-1].size
            try:
                with turn, in_background():
                    data = self._fetch(source, begin, end)
                break
            except StorageError as error:
                refused = isinstance(error, AccessDenied)
                wanted = any(self.buffer.is_wanted(entry.id) for entry in entries)
                if not (error.passes or refused) or not wanted:
                    self._fail(entries, error)
                    return
                self.note = str(error)
                with self._lock:
                    turn = self._probes[_store_of(source.path)]
                entries = self._pause(entries, error if refused else None)
            except Exception as error:  # noqa: BLE001  its readers would wait for this thread
                self._fail(entries, error)
                return
        for entry in entries:
            first = entry.begin - begin
            self.buffer.store(entry.id, data[first : first + entry.size])

    def _pause(self, entries: list[Taken], refusal: StorageError | None) -> list[Taken]:
        """Wait before the next attempt; return the ranges that nobody waits for, of refused ones.

        All others are discarded, as soon as a reader waits for them.
        """
        until = time.monotonic() + PAUSE
        while entries and not self._closed and (left := until - time.monotonic()) > 0:
            if refusal is None:
                time.sleep(left)
                break
            awaited = [entry for entry in entries if self.buffer.is_awaited(entry.id)]
            self._fail(awaited, refusal)
            entries = [entry for entry in entries if entry not in awaited]
            time.sleep(min(left, PAUSE / 50))
        return entries

    def _fail(self, entries: list[Taken], error: Exception) -> None:
        if entries:
            self.note = str(error)
        for entry in entries:
            self.buffer.fail(entry.id)

    def status(self, clients: int) -> Status:
        """Return how it is."""
        ahead = self.buffer.status()
        requests, retries = self._places.requests()
        asked, received = self._loop.counts() if self._loop is not None else (0, 0)
        copied, to_copy = self._copier.progress()
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
            fetched=self._fetched + received,
            copied=copied,
            to_copy=to_copy,
            used=self.used,
            requests=requests + asked,
            retries=retries,
            note=self.note
            or self._copier.note
            or (os.strerror(ahead["error"]) if ahead["error"] else ""),
        )


def _request_loop(buffer: PrefetchBuffer) -> RequestLoop | None:
    """Return a loop of native requests, or None without libcurl: then threads send them all."""
    if os.environ.get("DISTCACHE_REQUESTS") == "threads":
        return None
    try:
        return RequestLoop(buffer, curl_libraries(), limits().object_silence)
    except RuntimeError:
        return None


def _started_threads() -> ThreadPoolExecutor:
    """Return a pool whose threads run already: none that is started later can fail.

    Raises
    ------
    NoSpace
        If not even a few can be started.
    """
    for count in (READ_THREADS, READ_THREADS // 4, FEWEST_THREADS):
        pool, ready = ThreadPoolExecutor(count), threading.Barrier(count + 1)
        try:
            for _ in range(count):
                pool.submit(ready.wait)
            ready.wait()
            return pool
        except RuntimeError:
            ready.abort()
            pool.shutdown(wait=True, cancel_futures=True)
    raise NoSpace(f"the fetcher cannot start {FEWEST_THREADS} threads; allow more processes")


def _store_of(path: str) -> str:
    """Return what is away if a path is."""
    return str(address_of(path)._replace(key="")) if is_url(path) else path
