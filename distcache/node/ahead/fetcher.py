"""Reading ranges for the clients of a node: from what is ahead, or from their stores.

A source is an object, a file, or a compressed shard, which is unpacked once, whole. All ranges wait
in one queue, those first that readers wait for, and one pool of threads fetches them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distcache.errors import NoSpace, StorageError
from distcache.kernels import PrefetchBuffer
from distcache.node.ahead.open_sources import OpenSources
from distcache.node.ahead.protocol import (
    WHOLE,
    AheadRequest,
    ReadRequest,
    Source,
    Status,
    decoded,
    default_budget,
)
from distcache.storage.files import open_unnamed, write_range
from distcache.storage.pace import in_background
from distcache.storage.timeouts import limits

UNPACKERS: Final = 8  # shards that are unpacked at a time, at most; a quarter of the cores
AHEAD_THREADS: Final = 48  # that read ahead; a store's pace may allow fewer requests at a time
URGENT_THREADS: Final = 16  # that only fetch what a reader waits for
FEWEST_THREADS: Final = 2  # of each kind, without which no fetcher starts
PAUSE: Final = 5.0  # seconds until a thread takes more, after it could not read ahead
LISTEN: Final = 30.0  # seconds for which a thread waits for work
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
        self._places = OpenSources()
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
                whole = source.size if is_packed or source.size <= WHOLE else 0
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
        room = np.empty(0, np.uint8)
        while not self._closed.is_set():
            entries = [Taken(*entry) for entry in self.buffer.take(LISTEN, ahead)]
            if not entries:
                continue
            source, begin, urgent = entries[0].source, entries[0].begin, entries[0].urgent
            size = entries[-1].begin + entries[-1].size - begin
            if room.size < size:
                room = np.empty(size, np.uint8)
            try:
                with contextlib.nullcontext() if urgent else in_background():
                    self._read_into(room[:size], source, begin)
            except Exception as error:  # noqa: BLE001  its readers would wait for this thread
                self._errors[source], self._note = error, str(error)
                for entry in entries:
                    self.buffer.fail(entry.id)
                if not urgent:  # a store that refuses is not asked for all that comes next
                    self._closed.wait(PAUSE)
            else:
                for entry in entries:
                    self.buffer.store(entry.id, room[entry.begin - begin :][: entry.size])

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
            fetched=self._fetched,
            used=self._used,
            requests=requests,
            retries=retries,
            note=self._note or (os.strerror(ahead["error"]) if ahead["error"] else ""),
        )
