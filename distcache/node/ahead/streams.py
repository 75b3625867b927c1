"""What a process will read, as ranges with their places and states; `AheadLog` changes them."""

from __future__ import annotations

import collections
from enum import Enum
from typing import Final

from distcache.node.ahead.segment import Held, LogSegment, RangeKey

BEHIND: Final = 2048  # ranges by which a reader may be behind the first of its stream, at most
CLOSE: Final = 256  # and at least
LINE: Final = 192  # bytes of a journal's line, but for the path and the tag


class RangeState(Enum):
    """Where a range is."""

    queued = "it will be fetched"
    fetching = "it is being fetched"
    held = "it is on the disk"
    gone = "it is not ahead any more"


class Entry:
    """A range of one or more streams.

    Attributes
    ----------
    key : RangeKey
        Identity of the range.
    readers : dict of Stream to int
        Streams that will read it, and its number in each.
    streams : set of Stream
        Streams that will read it, or have read it.
    awaited : int
        Number of readers that have claimed it, and wait for it or read it now.
    """

    __slots__ = ("awaited", "held", "key", "offset", "readers", "segment", "state", "streams")

    def __init__(self, key: RangeKey) -> None:
        self.key = key
        self.readers: dict[Stream, int] = {}
        self.streams: set[Stream] = set()
        self.state = RangeState.queued
        self.segment: LogSegment | None = None
        self.offset = 0
        self.awaited = 0
        self.held: Held | None = None

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
        self.segments: list[LogSegment] = []
        self.numbered = 0
        self.budget = 0  # bytes that all streams together may have ahead, as this one asks
        self.position = 0  # the furthest range that was read
        self.placed = 0  # the furthest that has a place on the disk
        self.strange = 0  # readings far ahead of the position, one after the other

    @property
    def taken(self) -> int:
        """Bytes on the disk."""
        return sum(segment.cost for segment in self.segments)

    @property
    def past(self) -> int:
        """Ranges numbered below this are discarded; the reader has passed them."""
        return self.position - min(BEHIND, max((self.placed - self.position) // 2, CLOSE))
