"""The fetcher's process: it answers clients, and reads ahead for them.

It ends when its last client is gone. It holds the only connections to stores, and so the
credentials, of a node's training.
"""

from __future__ import annotations

import collections
import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from distcache.errors import AccessDenied, CorpusError, DistcacheError, NoSpace, StorageError
from distcache.node.ahead import LOCK
from distcache.node.ahead.ahead_log import AheadLog
from distcache.node.ahead.protocol import (
    AheadRequest,
    Hello,
    ReadRequest,
    Reply,
    Source,
    Status,
    StatusRequest,
    decode_ranges,
    listen_at,
    peer_is_own,
    peer_of,
    receive,
    send,
)
from distcache.node.ahead.segment import RangeKey
from distcache.node.ahead.streams import Entry, Stream
from distcache.storage.access import identity_of
from distcache.storage.files import open_sized, version_of, write_range
from distcache.storage.locks import try_lock
from distcache.storage.pace import in_background
from distcache.storage.place import FilePlace, Place, bucket_of
from distcache.storage.ranges import GAP, PIECE, Joined, join_ranges
from distcache.storage.timeouts import limits
from distcache.storage.url import address_of, is_url

if TYPE_CHECKING:
    from distcache.storage.bucket import Bucket

AHEAD_THREADS: Final = 48  # requests ahead of use at a time; a store's pace may allow fewer
READ_THREADS: Final = 64  # requests for what is waited for
FEWEST_THREADS: Final = 4
OPEN_FILES: Final = 512
PAUSE: Final = 5.0  # seconds between two attempts to read ahead from a store that is away
Request = AheadRequest | Hello | ReadRequest | StatusRequest


class _Places:
    """What is open for reading: objects need nothing, files stay open."""

    def __init__(self) -> None:
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


class Fetcher:
    """Reads ranges for clients, from the log or from their stores.

    Parameters
    ----------
    directory : Path
        Directory for the log.
    """

    def __init__(self, directory: Path) -> None:
        self.log = AheadLog(directory)
        self._places = _Places()
        self._readers = _started_threads()
        self._lock = threading.Lock()
        self._probes: dict[str, threading.Lock] = collections.defaultdict(threading.Lock)
        self._ahead: list[threading.Thread] = []
        self.fetched = 0
        self.used = 0

    def close(self) -> None:
        """End all threads, and remove what is ahead."""
        self.log.close()
        self._readers.shutdown(cancel_futures=True)

    def announce(self, stream: Stream, request: AheadRequest) -> None:
        """Read ranges ahead."""
        self.log.announce(stream, _keys(request.sources, request.ranges), request.budget)
        with self._lock:
            while len(self._ahead) < AHEAD_THREADS:
                thread = threading.Thread(target=self._read_ahead, daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the node has no more threads
                    if not self._ahead:
                        raise
                    break
                self._ahead.append(thread)

    def read(self, request: ReadRequest, descriptors: Sequence[int]) -> None:
        """Write ranges into descriptors, at their own offsets.

        Raises
        ------
        DistcacheError, OSError
            If one cannot be read.
        """
        if len(descriptors) != len(request.sources):
            raise ValueError("there is not a descriptor for each source")
        targets = dict(zip(request.sources, descriptors, strict=True))
        keys = [key for key in _keys(request.sources, request.ranges) if key.size]
        claimed = [(key, self.log.claim(key)) for key in keys]
        end = time.monotonic() + limits().object_store
        # What is missing is asked for before what is on its way is waited for.
        pending = self._fetch_all([key for key, entry in claimed if entry is None], targets)
        lost: list[RangeKey] = []
        problems: list[BaseException] = []
        for key, entry in claimed:
            if entry is not None:
                try:  # each that was claimed has to be read
                    data = self.log.read(entry, end)
                    if data is None:
                        lost.append(key)
                    else:
                        write_range(targets[key.source], key.begin, data)
                except Exception as problem:  # noqa: BLE001  raised below, after the others
                    problems.append(problem)
        pending += self._fetch_all(lost, targets)
        # Nothing may write to a descriptor after the caller has closed it.
        problems += [error for future in pending if (error := future.exception()) is not None]
        if problems:
            raise problems[0]
        with self._lock:
            self.used += sum(key.size for key in keys)

    def _fetch_all(
        self, keys: Sequence[RangeKey], targets: Mapping[Source, int]
    ) -> list[Future[None]]:
        """Begin to fetch ranges into descriptors."""
        wanted: dict[Source, list[tuple[int, int]]] = {}
        for key in keys:
            wanted.setdefault(key.source, []).append((key.begin, key.size))
        return [
            self._readers.submit(self._copy, source, joined, targets[source])
            for source, ranges in wanted.items()
            for joined in join_ranges(ranges, GAP, PIECE)
        ]

    def _copy(self, source: Source, joined: Joined, target: int) -> None:
        write_range(target, joined.begin, self._fetch(source, joined.begin, joined.end))

    def _fetch(self, source: Source, begin: int, end: int) -> np.ndarray:
        out = np.empty(end - begin, np.uint8)
        with self._places.open(source) as place:
            place.read_into(out, begin)
        with self._lock:
            self.fetched += out.size
        return out

    def _read_ahead(self) -> None:
        """Fetch what comes next, until the fetcher ends."""
        while entries := self.log.next_group():
            self._fetch_ahead(entries)

    def _fetch_ahead(self, entries: list[Entry]) -> None:
        """Fetch ranges that are close together; a store that is away or refuses is waited for.

        Then one thread at a time asks: a store that comes back is not met by all of every node's.
        A reader that waits for a range that is refused asks for it, and gets the refusal.
        """
        source = entries[0].key.source
        turn: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        while entries:
            begin = entries[0].key.begin
            end = entries[-1].key.begin + entries[-1].key.size
            try:
                with turn, in_background():
                    data = self._fetch(source, begin, end)
                break
            except StorageError as error:
                refused = isinstance(error, AccessDenied)
                if not (error.passes or refused) or not self.log.is_wanted(entries):
                    self._fail(entries, error)
                    return
                self.log.note = str(error)
                with self._lock:
                    turn = self._probes[_store_of(source.path)]
                entries = self._pause(entries, error if refused else None)
            except Exception as error:  # noqa: BLE001  its readers would wait for this thread
                self._fail(entries, error)
                return
        for entry in entries:
            first = entry.key.begin - begin
            self.log.store(entry, data[first : first + entry.key.size].data)

    def _pause(self, entries: list[Entry], refusal: StorageError | None) -> list[Entry]:
        """Wait before the next attempt; return the ranges that nobody waits for, of refused ones.

        All others are discarded, as soon as a reader waits for them.
        """
        until = time.monotonic() + PAUSE
        while entries and (left := until - time.monotonic()) > 0:
            awaited = self.log.awaited(entries) if refusal is not None else []
            if refusal is not None and awaited:
                self._fail(awaited, refusal)
                entries = [entry for entry in entries if entry not in awaited]
            time.sleep(min(left, PAUSE / 50) if refusal is not None else left)
        return entries

    def _fail(self, entries: list[Entry], error: Exception) -> None:
        for entry in entries:
            self.log.fail(entry, str(error))

    def status(self, clients: int) -> Status:
        """Return how it is."""
        streams, queued, ahead = self.log.counts()
        requests, retries = self._places.requests()
        return Status(
            process=os.getpid(),
            clients=clients,
            streams=streams,
            budget=self.log.budget,
            held=self.log.used,
            queued=queued,
            ahead=ahead,
            hits=self.log.hits,
            misses=self.log.misses,
            fetched=self.fetched,
            used=self.used,
            requests=requests,
            retries=retries,
            note=self.log.note,
        )


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


def _keys(sources: Sequence[Source], ranges: bytes) -> list[RangeKey]:
    found = decode_ranges(ranges, len(sources)).tolist()
    return [RangeKey(sources[source], begin, size) for source, begin, size in found]


class _Server:
    """Answers the clients of a fetcher, each in its own thread."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self._lock = threading.Lock()
        self._identity = identity_of(os.environ)
        self._clients = 0
        self._readers: set[socket.socket] = set()  # of these: others only ask how it is
        self._last = time.monotonic()
        self._ends = False

    def run(self, listener: socket.socket) -> None:
        """Serve until there has been no client for a while."""
        listener.settimeout(0.5)
        while not self._is_idle():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            except OSError:  # too many descriptors are open: those of others are closed soon
                time.sleep(PAUSE / 50)
                continue
            if not peer_is_own(connection):
                connection.close()
                continue
            with self._lock:
                self._clients += 1
            try:
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
            except RuntimeError:  # the node has no more threads: the client asks again
                connection.close()
                with self._lock:
                    self._clients -= 1

    def _is_idle(self) -> bool:
        with self._lock:
            idle = time.monotonic() - self._last > limits().fetcher_idle
            return self._ends or (not self._clients and idle)

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        stream: Stream | None = None
        try:
            with (
                contextlib.suppress(EOFError, OSError, ValueError),
                connection,
                _end_of(connection) as ended,
            ):
                while not _has_ended(connection, ended):
                    request, descriptors = receive(connection, Request)
                    if isinstance(request, AheadRequest) and stream is None:
                        stream = self._fetcher.log.open_stream()
                    send(connection, self._answer(connection, request, descriptors, stream))
        finally:
            if stream is not None:
                self._fetcher.log.close_stream(stream)
            with self._lock:
                self._clients -= 1
                self._readers.discard(connection)
                self._last = time.monotonic()

    def _answer(
        self,
        connection: socket.socket,
        request: Request,
        descriptors: list[int],
        stream: Stream | None,
    ) -> Reply:
        try:
            if isinstance(request, ReadRequest):
                self._fetcher.read(request, descriptors)
            elif isinstance(request, Hello):
                return self._greet(connection, request)
            elif isinstance(request, AheadRequest):
                assert stream is not None, "the caller has opened it"
                self._fetcher.announce(stream, request)
            else:
                return Reply(status=self._fetcher.status(self._clients))
        except (DistcacheError, OSError) as error:
            return Reply.of(error)
        except ValueError as error:
            return Reply((f"the fetcher was asked for what is not possible: {error}",), 1)
        except Exception as error:  # noqa: BLE001  without an answer, it would be taken for dead
            return Reply((f"the fetcher failed: {type(error).__name__}: {error}",), 1)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return Reply()

    def _greet(self, connection: socket.socket, request: Hello) -> Reply:
        """Accept a client that reaches stores as this process does; for others make room."""
        with self._lock:
            if request.identity == self._identity:
                self._readers.add(connection)
                return Reply()
            if self._readers:
                return Reply(
                    ("the fetcher of this node serves a job with other credentials or endpoints; "
                     "give each of these jobs a directory of its own (localize --store)",),
                    DistcacheError.exit_code,
                )  # fmt: skip
            self._ends = True
            return Reply(ends=True)


@contextlib.contextmanager
def _end_of(connection: socket.socket) -> Iterator[int | None]:
    """Open a descriptor that shows when the client's process has ended, or None where nothing can.

    A child that it has forked may keep the connection for long.
    """
    process = peer_of(connection)[0]
    try:
        descriptor = os.pidfd_open(process) if process else None
    except OSError:  # an old kernel
        descriptor = None
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _has_ended(connection: socket.socket, ended: int | None) -> bool:
    """Wait for a request; return whether the client's process ended without one."""
    if ended is None:
        return False
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    poll.register(ended, select.POLLIN)
    return connection.fileno() not in dict(poll.poll())


def serve(directory: Path) -> None:
    """Be the fetcher of a directory, unless another process is."""
    lock = try_lock(directory / LOCK)
    if lock is None:
        return
    listener = listen_at(directory)
    fetcher = Fetcher(directory)
    try:
        _Server(fetcher).run(listener)
    finally:
        listener.close()
        fetcher.close()
        os.close(lock)
