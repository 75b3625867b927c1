"""The read-ahead log: what comes next in each stream, and what of it is on the disk already.

A stream is the ranges that a training process will read, in its order. They are fetched as far
ahead as the budget allows, into segments, which are removed when nobody will read any of their
ranges any more, or when their reader is far beyond them.
"""

from __future__ import annotations

import collections
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from distcache.errors import NoSpace, StorageError
from distcache.node.ahead.segment import Held, LogSegment, RangeKey, earlier_segments
from distcache.node.ahead.streams import BEHIND, Entry, RangeState, Stream, cost_of
from distcache.storage.files import NO_SPACE
from distcache.storage.ranges import GAP
from distcache.storage.timeouts import limits

LARGEST: Final = 64 << 20  # bytes of a segment, unless there would be more than `MOST` of them
SMALLEST: Final = 64 << 10
SEGMENTS: Final = 16  # that the budget holds at least, while they are not too small
MOST: Final = 256  # each takes a descriptor
STRANGE: Final = 64  # readings far ahead, after which a stream has moved there
JOINED: Final = 16  # ranges that one request may serve
FULL: Final = 60.0  # seconds until a full disk is written to again
EARLIER: Final = 60.0  # seconds for which what a killed fetcher has left is kept


class AheadLog:
    """The log of a node; from any thread.

    Parameters
    ----------
    directory : Path
        Directory for its segments.

    Attributes
    ----------
    used : int
        Bytes on the disk.
    hits, misses : int
        Ranges that were ahead when they were read, and others.
    note : str
        Last problem.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        lock = threading.RLock()
        self._changed = threading.Condition(lock)  # a range has come, or will not
        self._work = threading.Condition(lock)  # there is something to fetch, or room for it
        self._entries: dict[RangeKey, list[Entry]] = {}  # one for each time that it is read
        self._streams: list[Stream] = []
        self._begin = time.monotonic()
        self._number = 0
        self._earlier: dict[RangeKey, tuple[LogSegment, Held]] = {}
        self._closed = False
        self._room: int | None = None  # what a full disk has held
        self._full = float("-inf")
        self.used = 0
        self.hits = 0
        self.misses = 0
        self.note = ""
        for segment, held in earlier_segments(directory):
            self._number = max(self._number, segment.number + 1)
            segment.cost = max(segment.allocated, sum(cost_of(entry.key) for entry in held))
            self.used += segment.cost
            for entry in held:
                self._earlier[entry.key] = (segment, entry)
            segment.unread = sum(self._earlier[entry.key][0] is segment for entry in held)

    @property
    def _asked(self) -> int:
        return max((stream.budget for stream in self._streams), default=0)

    @property
    def budget(self) -> int:
        """Bytes that may be ahead: what was asked for, or for a while what a full disk holds."""
        if self._room is None or time.monotonic() - self._full > FULL:
            return self._asked
        return min(self._asked, self._room)

    def counts(self) -> tuple[int, int, int]:
        """Return how many streams there are, and how many ranges are queued, and ahead."""
        with self._changed:
            states = collections.Counter(entry.state for entry in self._all())
            return len(self._streams), states[RangeState.queued], states[RangeState.held]

    def _all(self) -> list[Entry]:
        return [entry for entries in self._entries.values() for entry in entries]

    def _forget(self, entry: Entry) -> None:
        """Take a range out of the log."""
        entry.state = RangeState.gone
        entries = self._entries.get(entry.key, [])
        if entry in entries:
            entries.remove(entry)
        if not entries:
            self._entries.pop(entry.key, None)

    def open_stream(self) -> Stream:
        """Return a new stream, with nothing in it."""
        stream = Stream()
        with self._changed:
            self._streams.append(stream)
        return stream

    def announce(self, stream: Stream, keys: Sequence[RangeKey], budget: int) -> None:
        """Add ranges to the end of a stream; the largest budget of the open streams counts."""
        with self._changed:
            stream.budget = max(stream.budget, budget)
            for key in keys:
                stream.numbered += 1
                self._add(stream, key)
            self._work.notify()

    def _add(self, stream: Stream, key: RangeKey) -> None:
        """Add a range to a stream; ranks that read the same share it, once for each time."""
        entries = self._entries.setdefault(key, [])
        entry = next((entry for entry in entries if stream not in entry.streams), None)
        if entry is None:
            entry = Entry(key)
            entries.append(entry)
            if key in self._earlier:
                entry.segment, entry.held = self._earlier.pop(key)
                entry.state = RangeState.held
            else:
                stream.queue.append(entry)
        elif not entry.readers and entry.segment is not None:
            entry.segment.unread += 1  # others have read it
        entry.streams.add(stream)
        entry.readers[stream] = stream.numbered

    def close_stream(self, stream: Stream) -> None:
        """Give up what a process would have read, but for what others will read."""
        with self._changed:
            self._streams.remove(stream)
            for entry in self._all():
                if entry.readers.pop(stream, None) is None:
                    continue
                if not entry.readers:
                    self._give_up(entry)
                elif entry.state is RangeState.queued:
                    next(iter(entry.readers)).queue.append(entry)  # twice queued is fetched once
            self._work.notify()

    def close(self) -> None:
        """Let the threads that wait for work end, and remove all segments."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._work.notify_all()
        for stream in list(self._streams):
            self.close_stream(stream)
        with self._changed:
            self._drop_earlier()

    def claim(self, key: RangeKey) -> Entry | None:
        """Return a range that is ahead, or on its way, for `read`; None if the caller fetches it.

        Either counts as a reading of it.
        """
        with self._changed:
            entries = self._entries.get(key, [])
            entry = min(entries, key=_distance, default=None)
            if entry is not None and entry.state in (RangeState.fetching, RangeState.held):
                if entry.segment is not None:
                    entry.segment.users += 1
                entry.awaited += 1
                return entry
            self.misses += 1
            if entry is not None:
                self._read_once(entry)
            return None

    def read(self, entry: Entry, end: float) -> bytes | None:
        """Return a range that was claimed, as soon as it is there; None if it does not come.

        Parameters
        ----------
        entry : Entry
            Entry that `claim` has returned.
        end : float
            Time limit by ``time.monotonic``: the same for all ranges of a request.

        Raises
        ------
        StorageError
            If its store does not answer.
        """
        segment = entry.segment
        assert segment is not None, "it has a place on the disk"
        data = None
        try:
            self._wait_for(entry, end)
            if entry.held is not None:
                data = segment.read(entry.held)
        finally:
            with self._changed:
                segment.users -= 1
                entry.awaited -= 1
                self.hits += data is not None
                self.misses += data is None
                self._read_once(entry)
                self._drop_if_done(segment)
                self._work.notify()
        return data

    def _wait_for(self, entry: Entry, end: float) -> None:
        with self._changed:
            while entry.state is RangeState.fetching:
                if time.monotonic() > end:
                    why = f"no answer in {limits().object_store:.0f} s; {self.note}"
                    raise StorageError(entry.key.source.path, why)
                self._changed.wait(1.0)

    def _read_once(self, entry: Entry) -> None:
        """Note that a range was read, by the reader that will read it soonest.

        One that is far ahead of all was read by somebody who has not said so, and stays; unless
        many are: then its stream has moved on.
        """
        if not entry.readers:
            return
        stream = min(entry.readers, key=lambda stream: abs(entry.readers[stream] - stream.position))
        number = entry.readers[stream]
        if number > stream.position + BEHIND and stream.strange < STRANGE:
            stream.strange += 1
            return
        stream.strange = 0
        del entry.readers[stream]
        stream.position = max(stream.position, number)
        if not entry.readers:
            self._give_up(entry)
        for segment in list(stream.segments):
            if segment.last < stream.past:
                self._drop(segment)

    def _give_up(self, entry: Entry) -> None:
        """Note that nobody will read a range."""
        if entry.segment is None:
            self._forget(entry)
        elif not entry.segment.dropped:
            entry.segment.unread -= 1
            self._drop_if_done(entry.segment)

    def _drop_if_done(self, segment: LogSegment) -> None:
        """Drop a segment that nobody will read, and give a dropped one's space back."""
        if not segment.unread and not segment.users:
            self._drop(segment)
        if segment.dropped and not segment.users and not segment.removed:
            self.used -= segment.cost
            segment.remove()

    def _drop(self, segment: LogSegment) -> None:
        """Give up a segment; it is removed when nobody uses it."""
        if segment.dropped:
            return
        segment.dropped = True
        for stream in self._streams:
            if segment in stream.segments:
                stream.segments.remove(segment)
        for key in segment.keys:
            for entry in [e for e in self._entries.get(key, []) if e.segment is segment]:
                self._forget(entry)
            if key in self._earlier and self._earlier[key][0] is segment:
                del self._earlier[key]
        self._drop_if_done(segment)

    def _drop_earlier(self) -> None:
        """Give up what a killed fetcher has left and nobody has asked for."""
        for segment, _ in list(self._earlier.values()):
            segment.unread -= 1
        segments = [segment for segment, _ in self._earlier.values()]
        self._earlier.clear()
        for segment in segments:
            self._drop_if_done(segment)

    def next_group(self) -> list[Entry]:
        """Wait for ranges to fetch by one request, and give them their places; none at the end."""
        with self._changed:
            while not self._closed:
                try:
                    found = self._next_entries()
                except OSError as error:
                    self._note(self.used, error)
                    found = []
                if found:
                    self._work.notify()  # it finds what is left, and wakes the next
                    return found
                self._work.wait(1.0)
            return []

    def _next_entries(self) -> list[Entry]:
        if self._earlier and time.monotonic() - self._begin > EARLIER:
            self._drop_earlier()
        for stream in sorted(self._streams, key=lambda stream: stream.taken):
            first = self._first_of(stream)
            if first is None:
                continue
            if self.used + first.cost > self.budget and self._earlier:
                self._drop_earlier()
            if self.used + first.cost > self.budget:
                return []
            return self._start(stream)
        return []

    def _first_of(self, stream: Stream) -> Entry | None:
        """Return what comes next in a stream; what cannot be ahead, or has passed, is discarded."""
        while stream.queue:
            first = stream.queue[0]
            if first.state is RangeState.queued:
                is_past = all(number < s.past for s, number in first.readers.items())
                if first.cost <= self._asked and not is_past:
                    return first
                self._forget(first)
            stream.queue.popleft()
        return None

    def _start(self, stream: Stream) -> list[Entry]:
        """Give the next ranges of a stream their places, if they are close to one another."""
        found: list[Entry] = []
        while len(found) < JOINED and (entry := self._first_of(stream)) is not None:
            if found and not _is_next(found[-1].key, entry.key):
                break
            if found and self.used + entry.cost > self.budget:
                break
            try:
                segment = self._segment_for(stream)
            except OSError:
                if found:
                    break  # what has its place is fetched
                raise
            stream.queue.popleft()
            self._place(entry, segment)
            found.append(entry)
        return found

    def _place(self, entry: Entry, segment: LogSegment) -> None:
        """Give a range its place in a segment."""
        entry.segment, entry.state = segment, RangeState.fetching
        entry.offset = segment.allocate(entry.key, max(entry.readers.values()))
        for stream, number in entry.readers.items():
            stream.placed = max(stream.placed, number)
        segment.cost += entry.cost
        self.used += entry.cost
        segment.sealed = segment.allocated >= self._capacity

    @property
    def _capacity(self) -> int:
        usual = min(max(self._asked // SEGMENTS, SMALLEST), LARGEST)
        return max(usual, self._asked // MOST)

    def _segment_for(self, stream: Stream) -> LogSegment:
        last = stream.segments[-1] if stream.segments else None
        if last is None or last.sealed or last.dropped:
            last = self._new_segment()
            stream.segments.append(last)
        return last

    def _new_segment(self) -> LogSegment:
        """Return a segment under the next name that nothing has.

        Raises
        ------
        OSError
            If the disk is full, or too many files are open.
        """
        while True:
            self._number += 1
            try:
                return LogSegment(self._directory, self._number)
            except FileExistsError:
                continue

    def store(self, entry: Entry, data: memoryview) -> None:
        """Write a range that has been fetched; if the disk is full, it is discarded."""
        segment = entry.segment
        assert segment is not None, "it was given a place"
        held = None
        try:
            if not segment.dropped:
                held = segment.write(entry.key, entry.offset, data)
        except OSError as error:
            with self._changed:
                self._note(max(self.used - entry.cost, 0), error)
        with self._changed:
            self._settle(entry, segment, held)

    def fail(self, entry: Entry, note: str) -> None:
        """Discard a range that cannot be fetched: its reader gets the error."""
        with self._changed:
            self.note = note
            if entry.segment is not None:
                self._settle(entry, entry.segment, None)

    def is_wanted(self, entries: Sequence[Entry]) -> bool:
        """Return whether somebody will still read any of some ranges."""
        with self._changed:
            return any(entry.readers for entry in entries)

    def awaited(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return those of some ranges that somebody waits for."""
        with self._changed:
            return [entry for entry in entries if entry.awaited]

    def _settle(self, entry: Entry, segment: LogSegment, held: Held | None) -> None:
        """Note the end of fetching a range."""
        segment.written()
        if held is not None and not segment.dropped:
            entry.held, entry.state = held, RangeState.held
        else:
            if entry in self._entries.get(entry.key, []):
                segment.unread -= bool(entry.readers)
            self._forget(entry)
        self._drop_if_done(segment)
        self._changed.notify_all()
        if entry.state is RangeState.gone:
            self._work.notify()

    def _note(self, room: int, error: OSError) -> None:
        """Note that nothing could be written; a full disk is tried again later."""
        why = os.strerror(error.errno) if error.errno else str(error)
        self.note = f"{self._directory}: {why}; {room} bytes are ahead"
        if isinstance(error, NoSpace) or error.errno in NO_SPACE:
            self._room, self._full = room, time.monotonic()


def _distance(entry: Entry) -> int:
    """Return how far a range is from being read."""
    return min((abs(n - s.position) for s, n in entry.readers.items()), default=1 << 62)


def _is_next(last: RangeKey, following: RangeKey) -> bool:
    """Return whether one request had better fetch two ranges."""
    between = following.begin - (last.begin + last.size)
    return last.source == following.source and 0 <= between <= GAP
