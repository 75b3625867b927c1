"""Locks: one process changes a store at a time, and users are kept out by nobody who looks."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from distcache.errors import DistcacheError
from distcache.node.lock import exclusive, is_used, try_exclusive, try_shared
from distcache.node.store import make_store
from distcache.ranks.progress import NullProgress
from tests.support import here


def test_one_process_changes_a_store_at_a_time(tmp_path: Path) -> None:
    """Others wait for a bounded time, and say for what."""
    store = make_store(tmp_path / "local")
    held = try_exclusive(store.lock)
    assert held is not None
    assert try_exclusive(store.lock) is None
    ticks = iter(range(0, 10**9, 5000))
    with (
        pytest.raises(DistcacheError, match="another process has held this lock"),
        exclusive(here.ALONE, store.lock, NullProgress(), lambda: float(next(ticks))),
    ):
        pass
    os.close(held)
    with exclusive(here.ALONE, store.lock, NullProgress()) as waited:
        assert not waited
    assert try_shared(store.use_lock("none")) is None


def test_looking_does_not_keep_users_out(tmp_path: Path) -> None:
    """Who asks whether a cache is used holds its lock for a moment; users wait for that."""
    path = tmp_path / "lock"
    path.touch()
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            is_used(path)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for _ in range(300):
            descriptor = try_shared(path)
            assert descriptor is not None
            os.close(descriptor)
    finally:
        stop.set()
        watcher.join()
