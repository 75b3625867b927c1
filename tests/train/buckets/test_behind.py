"""Training that begins at once, while whole objects are copied behind it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import distcache
from distcache.corpus import bin_path
from distcache.errors import ConfigError
from distcache.node.records import read_records
from distcache.node.store import Store
from distcache.node.upkeep import bytes_of, collect, verify_store
from distcache.ranks.progress import NullProgress
from distcache.train.dataset import CachedDataset
from tests.node.agents import flip, only, run
from tests.support.buckets import put_cache
from tests.support.caches import build_here
from tests.support.scripted_s3 import ScriptedS3
from tests.support.waiting import wait_until
from tests.train.buckets.reading import batches, end_fetcher, equal, status


@pytest.fixture
def url(server: ScriptedS3, cache: Path) -> str:
    """A cache and its corpora in a bucket."""
    return put_cache(server, cache)


@pytest.fixture
def behind(url: str, server: ScriptedS3, tmp_path: Path) -> Iterator[Path]:
    """The store of a node whose objects are copied behind training."""
    root = tmp_path / "local"
    run(url, root, behind=True, share=1.0)
    server.script()
    yield root
    end_fetcher(root)


def copies(root: Path) -> list[Path]:
    """Return the paths of the copies."""
    store = Store(root)
    (record,) = read_records(store)
    return [Path(bin_path(store.prefix(corpus.stem))) for corpus in record.corpora]


def wait_for_copies(root: Path) -> None:
    """Wait until all have their names."""
    wait_until(lambda: all(path.is_file() for path in copies(root)), "the copies")


def test_training_does_not_wait(
    url: str, behind: Path, files: CachedDataset, server: ScriptedS3
) -> None:
    """It reads ranges at first, and at last nothing but the copies, which are right."""
    assert not any(path.exists() for path in copies(behind))
    dataset = distcache.open(url, behind).dataset("train")
    expected = batches(files)
    assert equal(batches(dataset, budget="1M"), expected)
    wait_for_copies(behind)
    now = status(behind)
    assert (now.copied, now.note) == (now.to_copy, "")
    server.script()
    assert equal(batches(dataset, budget="1M"), expected)
    assert equal(batches(distcache.open(url, behind).dataset("train"), workers=2), expected)
    assert server.bytes_of(".bin") == 0
    assert verify_store(Store(behind)) == []


def test_copies_are_those_of_bin_copy(url: str, behind: Path, server: ScriptedS3) -> None:
    """Nothing is fetched again for them, and one that is damaged is found and repaired."""
    assert len(batches(distcache.open(url, behind).dataset("train"), budget="1M", most=1)) == 1
    wait_for_copies(behind)
    server.script()
    assert only(run(url, behind, behind=True)).read == 0
    assert only(run(url, behind, copy=True)).read == 0
    assert server.bytes_of(".bin") == 0
    flip(copies(behind)[0], 1000)
    assert len(verify_store(Store(behind))) == 1
    assert only(run(url, behind)).read == copies(behind)[0].stat().st_size
    assert verify_store(Store(behind)) == []


def test_a_bad_copy_is_repaired(url: str, behind: Path, files: CachedDataset) -> None:
    """By the next run; one of another length is not read."""
    dataset = distcache.open(url, behind).dataset("train")
    assert len(batches(dataset, budget="1M", most=1)) == 1
    wait_for_copies(behind)
    end_fetcher(behind)
    flip(copies(behind)[0], 1000)
    copies(behind)[1].write_bytes(b"short")
    assert equal(
        batches(distcache.open(url, behind).dataset("train"), most=3), batches(files, most=3)
    )
    end_fetcher(behind)
    run(url, behind, behind=True)
    assert verify_store(Store(behind)) == []
    assert equal(batches(distcache.open(url, behind).dataset("train")), batches(files))


def test_a_killed_fetcher(url: str, behind: Path, files: CachedDataset, server: ScriptedS3) -> None:
    """Another takes up what there is."""
    server.latency = 0.02
    dataset = distcache.open(url, behind).dataset("train")
    found = batches(dataset, budget="1M", most=3)
    os.kill(status(behind).process, signal.SIGKILL)
    assert equal(found, batches(files, most=3))
    assert equal(batches(dataset, budget="1M"), batches(files))
    wait_for_copies(behind)
    assert verify_store(Store(behind)) == []


def test_an_unfinished_copy_is_kept(url: str, behind: Path) -> None:
    """A collection between two jobs does not remove it."""
    part = copies(behind)[0].with_name(f".{copies(behind)[0].name}.part")
    part.write_bytes(b"x")
    collect(Store(behind), 1 << 40, NullProgress())
    assert part.exists()
    collect(Store(behind), 0, NullProgress())
    assert not part.exists()


def test_a_budget_has_room_for_the_copies(
    url: str, blend_config: dict[str, Any], behind: Path, tmp_path: Path
) -> None:
    """That are still to be made: what was used longest ago goes before; `reserve` stays free."""
    store = Store(behind)
    (copied,) = read_records(store)
    other = build_here(blend_config | {"seed": 1}, tmp_path / "other").path
    run(other, behind)
    older = next(record for record in read_records(store) if record.source == str(other))
    os.utime(store.use_lock(older.name), (1, 1))
    size = bytes_of(store)
    tokens = sum(c.bin_version.size for c in copied.corpora if c.bin_version is not None)
    run(url, behind, behind=True, share=1.0, budget=size + tokens)
    assert len(list(read_records(store))) == 2
    run(url, behind, behind=True, share=1.0, budget=size + tokens - 1, reserve=1000)
    (record,) = read_records(store)
    assert (record.source, record.reserve) == (url, 1000)


def test_files_of_a_slow_filesystem(cache: Path, files: CachedDataset, tmp_path: Path) -> None:
    """They are copied, too; Megatron needs them before."""
    root = tmp_path / "local"
    with pytest.raises(ConfigError, match=r"Megatron needs its \.bin before training"):
        run(cache, root, behind=True, share=1.0, megatron=True)
    run(cache, root, behind=True, share=1.0)
    dataset = distcache.open(cache, root).dataset("train")
    try:
        assert equal(batches(dataset, budget="1M"), batches(files))
        wait_for_copies(root)
    finally:
        end_fetcher(root)
    assert equal(batches(dataset), batches(files))
    assert verify_store(Store(root)) == []
