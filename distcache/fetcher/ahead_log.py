"""The read-ahead log: what comes next in each stream, and what of it is on the disk already.

A stream is the ranges that a training process will read, in its order. They are fetched as far
ahead as the budget allows, into segments, which are removed when all of their ranges were read, or
when the reader is far beyond them.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Final

from distcache.errors import NoSpace, StorageError
from distcache.fetcher.segment import Held, RangeKey, Segment, earlier_segments
from distcache.timeouts import limits

__all__ = ["AheadLog", "Entry", "Stream", "cost_of"]

LARGEST: Final = 64 << 20  # bytes of a segment
SMALLEST: Final = 64 << 10
SEGMENTS: Final = 16  # that the budget holds at least, while they are not too small
BEHIND: Final = 2048  # ranges by which a reader may be behind the first of its stream
LINE: Final = 192  # bytes of a journal's line, but for the path and the tag
GAP: Final = 512  # bytes between two ranges that cost less than a request
JOINED: Final = 16  # ranges that one request may serve
FULL: Final = 60.0  # seconds until a full disk is written to again
EARLIER: Final = 60.0  # seconds for which what a killed fetcher has left is kept


class State(Enum):
    """Where a range is."""

    queued = "it will be fetched"
    fetching = "it is being fetched"
    held = "it is on the disk"
    gone = "it is not ahead any more"


class Entry:
    """A range of a stream.

    Attributes
    ----------
    key : RangeKey
        Which.
    stream : Stream
        The first that has it.
    number : int
        Its place in the stream.
    """

    __slots__ = ("held", "key", "number", "offset", "segment", "state", "stream", "wanted")

    def __init__(self, key: RangeKey, stream: Stream, number: int) -> None:
        self.key = key
        self.stream = stream
        self.number = number
        self.state = State.queued
        self.segment: Segment | None = None
        self.offset = 0
        self.held: Held | None = None
        self.wanted = 1  # how often it will be read

    @property
    def cost(self) -> int:
        """Bytes that it takes on the disk."""
        return cost_of(self.key)


def cost_of(key: RangeKey) -> int:
    """Return the bytes that a range takes on the disk, with its line of the journal."""
    return key.size + LINE + len(key.source.path) + len(key.source.version.tag)


class Stream:
    """What one process will read."""

    def __init__(self) -> None:
        self.queue: collections.deque[Entry] = collections.deque()
        self.segments: list[Segment] = []
        self.numbered = 0
        self.position = 0  # the furthest range that was read

    @property
    def taken(self) -> int:
        """Bytes on the disk."""
        return sum(segment.cost for segment in self.segments)


class AheadLog:
    """The log of a node; from any thread.

    Parameters
    ----------
    directory : Path
        For its segments.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._changed = threading.Condition()
        self._entries: dict[RangeKey, Entry] = {}
        self._streams: list[Stream] = []
        self._begin = time.monotonic()
        self._number = 0
        self._earlier: dict[RangeKey, tuple[Segment, Held]] = {}
        self._closed = False
        self._asked = 0
        self._room: int | None = None  # what a full disk has held
        self._full = float("-inf")
        self.used = 0
        self.hits = 0
        self.misses = 0
        self.note = ""
        for segment, held in earlier_segments(directory):
            self._number = max(self._number, segment.number + 1)
            segment.cost = sum(cost_of(entry.key) for entry in held)
            self.used += segment.cost
            for entry in held:
                self._earlier[entry.key] = (segment, entry)
                segment.keys.add(entry.key)

    @property
    def budget(self) -> int:
        """Bytes that may be ahead: what was asked for, or for a while what a full disk holds."""
        if self._room is None or time.monotonic() - self._full > FULL:
            return self._asked
        return min(self._asked, self._room)

    def open_stream(self) -> Stream:
        """Return a new stream, with nothing in it."""
        stream = Stream()
        with self._changed:
            self._streams.append(stream)
        return stream

    def counts(self) -> tuple[int, int, int]:
        """Return how many streams there are, and how many ranges are queued, and ahead."""
        with self._changed:
            states = collections.Counter(entry.state for entry in self._entries.values())
            return len(self._streams), states[State.queued], states[State.held]

    def announce(self, stream: Stream, keys: Sequence[RangeKey], budget: int) -> None:
        """Add ranges to the end of a stream; the largest budget that was asked for counts."""
        with self._changed:
            self._asked = max(self._asked, budget)
            for key in keys:
                stream.numbered += 1
                if key in self._entries:
                    self._want_again(self._entries[key])
                    continue
                entry = Entry(key, stream, stream.numbered)
                self._entries[key] = entry
                if key in self._earlier:
                    self._adopt(entry, *self._earlier.pop(key))
                else:
                    stream.queue.append(entry)
            self._changed.notify_all()

    def _want_again(self, entry: Entry) -> None:
        entry.wanted += 1
        if entry.wanted == 1 and entry.segment is not None:
            entry.segment.unread += 1

    def _adopt(self, entry: Entry, segment: Segment, held: Held) -> None:
        entry.state, entry.segment, entry.held = State.held, segment, held
        segment.unread += 1
        segment.last = max(segment.last, entry.number)
        if segment not in entry.stream.segments:
            entry.stream.segments.append(segment)

    def close_stream(self, stream: Stream) -> None:
        """Give up what a process would have read, unless others will read it."""
        with self._changed:
            self._streams.remove(stream)
            for key, entry in list(self._entries.items()):
                if entry.stream is stream and entry.segment is None:
                    entry.state = State.gone
                    del self._entries[key]
            for segment in list(stream.segments):
                self._drop(stream, segment)
            self._changed.notify_all()

    def close(self) -> None:
        """Let the threads that wait for work end, and remove all segments."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for stream in list(self._streams):
            self.close_stream(stream)
        with self._changed:
            self._drop_earlier()

    def take(self, key: RangeKey) -> bytes | None:
        """Return a range if it is ahead, also one that is just being fetched; or None.

        Raises
        ------
        StorageError
            If it is being fetched, and its store does not answer.
        """
        with self._changed:
            entry = self._entries.get(key)
            if entry is not None:
                entry.stream.position = max(entry.stream.position, entry.number)
            if entry is None or entry.state is State.queued:
                self.misses += 1
                if entry is not None:
                    self._read_once(entry)
                    self._drop_past(entry.stream)
                return None
            self._wait_for(entry)
            held, segment = entry.held, entry.segment
            if entry.state is not State.held or held is None or segment is None:
                self.misses += 1
                return None
            segment.users += 1
        data = segment.read(held)
        with self._changed:
            segment.users -= 1
            self.hits += data is not None
            self.misses += data is None
            self._read_once(entry)
            self._remove_dropped(segment)
            self._drop_past(entry.stream)
            self._changed.notify_all()
        return data

    def _wait_for(self, entry: Entry) -> None:
        begin = time.monotonic()
        while entry.state is State.fetching:
            if time.monotonic() - begin > limits().object_store:
                raise StorageError(
                    entry.key.source.path,
                    f"no answer in {limits().object_store:.0f} s; {self.note}",
                )
            self._changed.wait(1.0)

    def _read_once(self, entry: Entry) -> None:
        """Note that a range was read."""
        entry.wanted -= 1
        if entry.wanted > 0:
            return
        segment = entry.segment
        if segment is None:
            entry.state = State.gone
            self._entries.pop(entry.key, None)
        elif entry.wanted == 0:
            segment.unread -= 1
            if segment.sealed and not segment.unread:
                self._drop(entry.stream, segment)

    def _drop_past(self, stream: Stream) -> None:
        """Give up segments that a reader has left behind."""
        for segment in list(stream.segments):
            if segment.last < stream.position - BEHIND:
                self._drop(stream, segment)

    def _drop(self, stream: Stream, segment: Segment) -> None:
        if segment in stream.segments:
            stream.segments.remove(segment)
        if segment.dropped:
            return
        segment.dropped = True
        for key in segment.keys:
            entry = self._entries.get(key)
            if entry is not None and entry.segment is segment:
                entry.state = State.gone
                del self._entries[key]
        self._remove_dropped(segment)

    def _remove_dropped(self, segment: Segment) -> None:
        """Give a dropped segment's space back, when nobody uses it any more."""
        if segment.dropped and not segment.users:
            segment.users = -1
            self.used -= segment.cost
            segment.remove()

    def _drop_earlier(self) -> None:
        """Give up what a killed fetcher has left and nobody has asked for."""
        segments = {id(segment): segment for segment, _ in self._earlier.values()}
        self._earlier.clear()
        taken = {id(segment) for stream in self._streams for segment in stream.segments}
        for number, segment in segments.items():
            if number not in taken and not segment.dropped:
                segment.dropped = True
                self._remove_dropped(segment)

    def next_group(self) -> list[Entry]:
        """Wait for ranges to fetch by one request, and give them their places; none at the end."""
        with self._changed:
            while not self._closed:
                try:
                    found = self._next_entries()
                except (OSError, NoSpace):
                    self._shrink(self.used)
                    found = []
                if found:
                    return found
                self._changed.wait(1.0)
            return []

    def _next_entries(self) -> list[Entry]:
        if self._earlier and time.monotonic() - self._begin > EARLIER:
            self._drop_earlier()
        for stream in sorted(self._streams, key=lambda stream: stream.taken):
            first = self._first_of(stream)
            if first is None:
                continue
            if self.used + first.cost > self.budget:
                if not self._earlier:
                    return []
                self._drop_earlier()
                return self._next_entries()
            return self._start(stream)
        return []

    def _first_of(self, stream: Stream) -> Entry | None:
        """Return what comes next in a stream; what cannot be ahead, or is past, is given up."""
        while stream.queue:
            first = stream.queue[0]
            if first.state is State.queued:
                is_past = first.number < stream.position - BEHIND
                if first.cost <= self._asked and not is_past:
                    return first
                first.state = State.gone
                self._entries.pop(first.key, None)
            stream.queue.popleft()
        return None

    def _start(self, stream: Stream) -> list[Entry]:
        """Give the next ranges of a stream their places, if they are close to one another."""
        found: list[Entry] = []
        while stream.queue and len(found) < JOINED:
            entry = stream.queue[0]
            if entry.state is not State.queued:
                stream.queue.popleft()
                continue
            if found and not _is_next(found[-1].key, entry.key):
                break
            if found and self.used + entry.cost > self.budget:
                break
            segment = self._segment_for(stream)
            stream.queue.popleft()
            entry.segment, entry.state = segment, State.fetching
            entry.offset = segment.allocate(entry.key.size)
            segment.unread += 1
            segment.users += 1
            segment.keys.add(entry.key)
            segment.last = entry.number
            segment.cost += entry.cost
            self.used += entry.cost
            segment.sealed = segment.allocated >= self._capacity
            found.append(entry)
        return found

    @property
    def _capacity(self) -> int:
        return min(max(self.budget // SEGMENTS, SMALLEST), LARGEST)

    def _segment_for(self, stream: Stream) -> Segment:
        last = stream.segments[-1] if stream.segments else None
        if last is None or last.sealed or last.dropped:
            last = Segment(self._directory, self._number)
            self._number += 1
            stream.segments.append(last)
        return last

    def store(self, entry: Entry, data: memoryview) -> None:
        """Write a range that has been fetched.

        Raises
        ------
        OSError
            If the disk is full: then less is read ahead from now on.
        """
        segment = entry.segment
        assert segment is not None, "it was given a place"
        held = None
        try:
            if not segment.dropped:
                held = segment.write(entry.key, entry.offset, data)
        except (OSError, NoSpace):
            with self._changed:
                self._shrink(max(self.used - entry.cost, 0))
            raise
        finally:
            with self._changed:
                self._settle(entry, segment, held)

    def _shrink(self, room: int) -> None:
        """Note that the disk is full: it is tried again later."""
        self._room, self._full = room, time.monotonic()
        self.note = f"{self._directory}: the disk is full; {room} bytes are ahead"

    def is_wanted(self, entries: Sequence[Entry]) -> bool:
        """Return whether somebody will still read any of some ranges."""
        with self._changed:
            return any(entry.segment is not None and not entry.segment.dropped for entry in entries)

    def fail(self, entry: Entry, note: str) -> None:
        """Give up a range that cannot be fetched: who reads it will get the error."""
        with self._changed:
            self.note = note
            if entry.segment is not None:
                self._settle(entry, entry.segment, None)

    def _settle(self, entry: Entry, segment: Segment, held: Held | None) -> None:
        """Note the end of fetching a range."""
        segment.users -= 1
        if held is not None and not segment.dropped:
            entry.held, entry.state = held, State.held
        else:
            entry.state = State.gone
            if self._entries.get(entry.key) is entry:
                del self._entries[entry.key]
            segment.unread -= 1
            if segment.sealed and not segment.unread and not segment.dropped:
                self._drop(entry.stream, segment)
        self._remove_dropped(segment)
        self._changed.notify_all()


def _is_next(last: RangeKey, following: RangeKey) -> bool:
    """Return whether one request had better fetch two ranges."""
    between = following.begin - (last.begin + last.size)
    return last.source == following.source and 0 <= between <= GAP
