"""The fetcher by itself, without clients."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from distcache.fetcher.protocol import AheadRequest, ReadRequest, Source, encode_ranges
from distcache.fetcher.server import Fetcher
from distcache.io.files import version_of

RANGES = [(0, begin, 1000) for begin in range(0, 10_000, 1000)]
LIMIT = 60  # seconds


def test_a_reader_that_cannot_be_given_its_ranges(tmp_path: Path) -> None:
    """Gets an error, and keeps nothing of the log."""
    path = tmp_path / "c.bin"
    path.write_bytes(os.urandom(10_000))
    source = Source(str(path), version_of(path.stat()))
    (tmp_path / "ahead").mkdir()
    fetcher = Fetcher(tmp_path / "ahead")
    stream = fetcher.log.open_stream()
    fetcher.announce(stream, AheadRequest([source], encode_ranges(RANGES), 1 << 20))
    end = time.monotonic() + LIMIT
    while fetcher.log.counts()[2] < len(RANGES):
        assert time.monotonic() < end
        time.sleep(0.01)
    target = os.open(path, os.O_RDONLY)
    with pytest.raises(OSError, match="Bad file descriptor"):
        fetcher.read(ReadRequest([source], encode_ranges(RANGES)), [target])
    os.close(target)
    fetcher.log.close_stream(stream)
    assert fetcher.log.used == 0
    fetcher.close()
