"""The fetcher by itself, without clients."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path

import pytest

from distcache.fetcher.protocol import AheadRequest, ReadRequest, Source, encode_ranges
from distcache.fetcher.server import Fetcher
from distcache.io.files import version_of
from tests.waiting import wait_until

RANGES = [(0, begin, 1000) for begin in range(0, 10_000, 1000)]


def test_a_reader_that_cannot_be_given_its_ranges(tmp_path: Path) -> None:
    """Gets an error, and keeps nothing of the log."""
    path = tmp_path / "c.bin"
    path.write_bytes(os.urandom(10_000))
    source = Source(str(path), version_of(path.stat()))
    (tmp_path / "ahead").mkdir()
    fetcher = Fetcher(tmp_path / "ahead")
    stream = fetcher.log.open_stream()
    fetcher.announce(stream, AheadRequest([source], encode_ranges(RANGES), 1 << 20))
    wait_until(lambda: fetcher.log.counts()[2] == len(RANGES), "what is read ahead")
    target = os.open(path, os.O_RDONLY)
    with pytest.raises(OSError, match="Bad file descriptor"):
        fetcher.read(ReadRequest([source], encode_ranges(RANGES)), [target])
    os.close(target)
    fetcher.log.close_stream(stream)
    assert fetcher.log.used == 0
    fetcher.close()


def test_a_question_while_the_client_of_stores_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another thread, is answered."""
    half_imported = types.ModuleType("distcache.storage.bucket")
    monkeypatch.setitem(sys.modules, half_imported.__name__, half_imported)
    fetcher = Fetcher(tmp_path)
    assert fetcher.status(1).requests == 0
    fetcher.close()
