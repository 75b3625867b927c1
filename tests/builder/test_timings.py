"""A build record tells who was slow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distcache.builder.build_record import (
    BuildRecord,
    RankRecord,
    make_timings,
    read_build_record,
    record_path,
    total_own_seconds,
)
from distcache.errors import CacheCorrupt, NotReady
from tests.support import here
from tests.support.processes import start


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
