"""What `localize` takes for right, what it makes room for, and that it harms nobody who reads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import distcache
from distcache.corpus import idx_path
from distcache.errors import CacheCorrupt, ConfigError
from distcache.node.localize import localize
from distcache.node.records import LocalizeOptions, read_records
from distcache.node.store import Store, local_directory
from distcache.node.upkeep import verify_store
from distcache.ranks.job_environment import NODE_NAME
from tests.node.agents import flip, only, run
from tests.support import here
from tests.support.threads import ThreadCommunicator, run_ranks


def test_a_touched_index_is_not_fetched(
    own_corpora: dict[str, Any], cache: Path, tmp_path: Path
) -> None:
    """Its digest is the same; only where that is looked up is anything read."""
    run(cache, tmp_path / "local")
    os.utime(idx_path(own_corpora["blend"][0]["path"]), (1, 1))
    report = only(run(cache, tmp_path / "local"))
    assert report.written == 0
    assert only(run(cache, tmp_path / "local")).read == 0


def test_quick_reads_no_byte_of_the_copy(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Record, sizes and times decide; a file whose time differs is looked at after all."""
    report = only(run(cache, tmp_path / "local"))
    read: list[str] = []
    original = os.preadv

    def noting(descriptor: int, *rest: Any) -> int:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        read.extend([path] if path.startswith(f"{tmp_path}/local/") else [])
        return original(descriptor, *rest)

    monkeypatch.setattr(os, "preadv", noting)
    assert only(run(cache, tmp_path / "local", quick=True)).kept > 0
    assert read == []
    flip(Path(report.cache), 20_000)
    assert only(run(cache, tmp_path / "local", quick=True)).written > 0
    assert read
    assert verify_store(Store(tmp_path / "local")) == []


def test_quick_looks_at_the_time_of_a_copied_bin(cache: Path, tmp_path: Path) -> None:
    """As at those of the cache and of the indices."""
    run(cache, tmp_path / "local", tokens="copy")
    assert only(run(cache, tmp_path / "local", tokens="copy", quick=True)).written == 0
    copy = next((tmp_path / "local" / "corpora").glob("*.bin"))
    flip(copy, 10)
    assert only(run(cache, tmp_path / "local", tokens="copy", quick=True)).written > 0
    assert verify_store(Store(tmp_path / "local")) == []


def test_a_budget_makes_room_by_age(
    blend_config: dict[str, Any], shared: Path, tmp_path: Path
) -> None:
    """What was used longest ago goes; what is in use stays, as with `local gc`."""
    caches = [
        Path(here.build({**blend_config, "seed": seed}, shared, f"c{seed}").path)
        for seed in range(3)
    ]
    root = tmp_path / "local"
    for path in caches[:2]:
        run(path, root)
    store = Store(root)
    first = next(record for record in read_records(store) if record.source == str(caches[0]))
    os.utime(store.root / "caches" / f"{first.name}.lock", (1, 1))
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    assert only(run(caches[2], root, budget=size + 1000)).beyond == 0
    kept = {record.source for record in read_records(store)}
    assert kept == {str(caches[1]), str(caches[2])}
    opened = distcache.open(caches[1], local=root)
    assert opened.is_local
    assert only(run(caches[0], root, budget=0)).beyond > 0
    assert {record.source for record in read_records(store)} == {str(caches[0]), str(caches[1])}
    assert opened.is_local


def test_a_broken_node_may_go_without(cache: Path, tmp_path: Path) -> None:
    """It is reported; and nothing is there that a loader could take for a copy."""
    (tmp_path / "local").write_text("in the way")
    report = only(run(cache, tmp_path / "local", best_effort=True))
    assert "local" in report.problem
    assert report.cache == ""
    with pytest.warns(distcache.SharedFileWarning, match="not a directory"):
        assert not distcache.open(cache, local=tmp_path / "local").is_local


def test_the_others_fail_after_a_broken_node_has_gone(cache: Path, tmp_path: Path) -> None:
    """It hears of it, and does not wait for a report that never comes."""
    flip(cache, 20_000)
    (tmp_path / "node2").write_text("in the way")

    def work(world: ThreadCommunicator) -> None:
        own = f"node{world.rank}"
        environment = {NODE_NAME: own, "DISTCACHE_LOCAL_DIR": str(tmp_path / own)}
        options = LocalizeOptions(best_effort=True)
        localize(world, cache, options, environment=environment)

    outcomes, aborted = run_ranks(3, work)
    assert aborted == []
    assert [type(outcome) for outcome in outcomes] == [CacheCorrupt] * 3


def test_a_copy_that_another_job_has_brought(cache: Path, tmp_path: Path) -> None:
    """It is treated as right, but where a budget is still to be kept to."""
    run(cache, tmp_path / "local")
    record = next(iter(read_records(Store(tmp_path / "local"))))
    assert LocalizeOptions().are_fulfilled_by(record)
    assert not LocalizeOptions(budget=1).are_fulfilled_by(record)


def test_where_a_store_is(tmp_path: Path) -> None:
    """A store is where it is asked for, else as the environment says; an empty name is an error."""
    environment = {"TMPDIR": "/t", "SLURM_TMPDIR": "/s", "DISTCACHE_LOCAL_DIR": "/d"}
    assert local_directory(tmp_path, environment) == tmp_path
    assert local_directory(None, environment) == Path("/d")
    del environment["DISTCACHE_LOCAL_DIR"]
    assert local_directory(None, environment) == Path(f"/s/distcache-{os.geteuid()}")
    assert local_directory(None, {}) is None
    with pytest.raises(ConfigError, match="--store is empty"):
        local_directory("", environment)
