"""What a build leaves to be read: old bytes read again before it is published, and its timings."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distcache.builder import readback
from distcache.builder.build_record import (
    BuildRecord,
    RankRecord,
    make_timings,
    read_build_record,
    record_path,
    total_own_seconds,
)
from distcache.cache import open_cache
from distcache.cache.digests import verify_cache
from distcache.cache.format import BLOCK_SIZE
from distcache.errors import CacheCorrupt, DistcacheError, NotReady
from distcache.ranks.progress import NullProgress
from tests.support import here
from tests.support.large import write_large
from tests.support.processes import start


class Noting(NullProgress):
    """A progress that keeps notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        """Keep a note."""
        self.notes.append(text)


@pytest.fixture(scope="module")
def fields(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the configuration of a cache of several blocks, with borders within arrays."""
    corpora = tmp_path_factory.mktemp("large")
    return {
        "sequence_length": 24,
        "split": "98,1,1",
        "samples": {"train": 7_000_000, "valid": 100, "test": 100},
        "blend": [
            {"path": write_large(corpora / name, 700_000), "weight": weight}
            for name, weight in (("a", 2), ("b", 1))
        ],
    }


Change = Callable[[int, np.ndarray[Any, Any]], None]


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch) -> Callable[[Change], None]:
    """Let the disk show other bytes: by what was read of the unfinished cache before them."""
    original = os.preadv

    def begin(change: Change) -> None:
        count = 0

        def preadv(descriptor: int, buffers: list[Any], offset: int) -> int:
            nonlocal count
            done = original(descriptor, buffers, offset)
            if os.readlink(f"/proc/self/fd/{descriptor}").endswith(".building/data"):
                change(count, np.frombuffer(buffers[0], np.uint8)[:done])
                count += 1
            return done

        monkeypatch.setattr(os, "preadv", preadv)
        monkeypatch.setattr(readback, "PAUSES", (0.0, 0.0, None))

    return begin


def test_blocks_of_a_large_cache(fields: dict[str, Any], tmp_path: Path) -> None:
    """They have the digests that `verify` computes from the file alone."""
    cache = open_cache(here.build(fields, tmp_path).path)
    assert len(cache.table("blocks")) >= 3
    offsets = [view.offset for view in cache.arrays("sections", 0).values()]
    assert all(offset % BLOCK_SIZE for offset in offsets)
    verify_cache(cache)


@pytest.mark.parametrize("piece", [0, 1, 30, 63, 64, 65, 66])
def test_old_bytes_are_read_again(
    fields: dict[str, Any], tmp_path: Path, show: Callable[[Change], None], piece: int
) -> None:
    """Old bytes are read again, and enter no digest, of an array or of a block."""

    def change(count: int, shown: np.ndarray[Any, Any]) -> None:
        if count == piece:
            shown[len(shown) // 2 :] = 0

    progress = Noting()
    show(change)
    outcome = here.build(fields, tmp_path, progress=progress)
    assert "1 items differ after read-back; reading again" in progress.notes
    verify_cache(open_cache(outcome.path))


def test_bytes_that_are_lost(
    fields: dict[str, Any],
    tmp_path: Path,
    show: Callable[[Change], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They end the build, and the section is named; the next build makes the cache."""

    def change(_: int, shown: np.ndarray[Any, Any]) -> None:
        shown[:1] ^= 1

    show(change)
    with pytest.raises(DistcacheError, match="sequences 0 to 686000 differs after read-back"):
        here.build(fields, tmp_path, "c")
    assert not (tmp_path / "c.h5").exists()
    monkeypatch.undo()
    verify_cache(open_cache(here.build(fields, tmp_path, "c").path))


def rank(number: int, building: float, waited: float) -> RankRecord:
    """A rank that was in one phase for so long, and waited for a part of it."""
    phases = {"planning": 0.1, "building": building}
    return RankRecord(number, f"node{number}", phases, 5, 6, {"building": waited})


def test_the_slowest_rank_is_the_one_that_others_wait_for() -> None:
    """All ranks are in a phase equally long; what counts is their own work."""
    ranks = [rank(0, 10.0, 9.0), rank(1, 10.0, 0.5), rank(2, 10.0, 8.0)]
    timings = make_timings(BuildRecord("c.h5", "k", "", {}, 1, 0, 0, ranks), shown=2)
    building = timings.phases[1]
    assert (building.phase, building.seconds) == ("building", 10.0)
    assert (building.least, building.median, building.most) == (1.0, 2.0, 9.5)
    assert (building.slowest_rank, building.slowest_host) == (1, "node1")
    assert [entry.rank for entry in timings.ranks] == [1, 2]
    assert total_own_seconds(timings.ranks[0]) == pytest.approx(9.6)


def test_a_build_leaves_its_timings(blend_config: dict[str, object], shared: Path) -> None:
    """A build leaves its timings."""
    path = Path(here.build(blend_config, shared).path)
    record = read_build_record(path)
    assert [entry.rank for entry in record.ranks] == [0]
    assert record.ranks[0].waited.keys() == record.ranks[0].seconds.keys()
    found = json.loads(start(["inspect", path, "--timings"]).stdout)
    assert [entry["phase"] for entry in found["phases"]] == list(record.ranks[0].seconds)


EMPTY = (
    b'{"cache": "", "key": "", "finished": "", "versions": {}, "threads": 1, "resumed": 0, '
    b'"reused_items": 0, "ranks": []}'
)


@pytest.mark.parametrize("content", [b"", b"{}", b"[" * 100_000, b"\xff", EMPTY])
def test_what_is_no_build_record(content: bytes, tmp_path: Path) -> None:
    """What is no build record is one clear error."""
    with pytest.raises(NotReady, match="no build record"):
        read_build_record(tmp_path / "c.h5")
    record_path(tmp_path / "c.h5").write_bytes(content)
    with pytest.raises(CacheCorrupt, match="is not a build record"):
        read_build_record(tmp_path / "c.h5")
