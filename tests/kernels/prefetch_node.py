"""A prefetch buffer with a source of ranges, instead of the fetcher, and a reader of it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from distcache.kernels import PrefetchBuffer
from distcache.storage.files import open_unnamed

SIZE = 10_000
UNIT = 64  # bytes; places are multiples of it
COST = -(-SIZE // UNIT) * UNIT
COPIED, FAILED, LATE, DAMAGED, UNWRITABLE = range(5)
LARGE = 1 << 40
Range = tuple[int, int, int]


def content(begin: int, size: int) -> bytes:
    """Return the bytes of a range: each depends on its place."""
    return (np.arange(begin, begin + size) % 251).astype(np.uint8).tobytes()


class Node:
    """A buffer, with a source of ranges that threads fetch, instead of the fetcher."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.file = open_unnamed(directory)
        self.buffer = PrefetchBuffer(self.file)
        self.source = self.buffer.add_source(0, packed=False)

    def key(self, number: int, size: int = SIZE) -> Range:
        """Return a range that is far from others."""
        return (self.source, number * 100_000, size)

    def announce(self, stream: int, readings: list[list[Range]], budget: int = LARGE) -> None:
        """Announce readings of ranges."""
        ranges = np.array([key for keys in readings for key in keys], np.int64).reshape(-1, 3)
        ends = np.cumsum([len(keys) for keys in readings], dtype=np.int64)
        self.buffer.announce(stream, ranges, ends, budget)

    def stream(self, numbers: range, budget: int = LARGE) -> int:
        """Return a stream of a reading for each number."""
        stream = self.buffer.open_stream()
        self.announce(stream, [[self.key(number)] for number in numbers], budget)
        return stream

    def fetch(self, most: int = 1000) -> int:
        """Fetch what the budget allows, and return how many ranges."""
        count = 0
        while count < most and (taken := self.buffer.take(0.0, ahead=True)):
            for entry, _, begin, size, _ in taken:
                self.buffer.store(entry, np.frombuffer(content(begin, size), np.uint8))
            count += len(taken)
        return count

    def read(self, key: Range, seconds: float = 0.0) -> int:
        """Read a range, compare its bytes, and return what became of it."""
        return read(self.buffer, key, seconds)

    def finish(self, stream: int, number: int) -> None:
        """End a reading."""
        self.buffer.finish_readings(np.array([[stream, number]], np.int64))

    def status(self) -> dict[str, int]:
        """Return the counts of the buffer; its file is not larger than what it says."""
        found = self.buffer.status()
        assert os.fstat(self.file).st_size <= max(found["used"], found["budget"]) + (16 << 20)
        return found


def read(buffer: PrefetchBuffer, key: Range, seconds: float = 0.0) -> int:
    """Read a range, compare its bytes, and return what became of it."""
    file = os.memfd_create("target")
    try:
        (outcome,) = buffer.fetch(np.array([key], np.int64), np.array([file], np.int32), seconds)
        if outcome == COPIED:
            assert os.pread(file, key[2], key[1]) == content(key[1], key[2])
        return outcome
    finally:
        os.close(file)
