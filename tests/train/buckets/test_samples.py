"""Training from a bucket: the samples of files, by exact ranges."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import torch

import distcache
from distcache.errors import ConfigError, CorpusError, NotReady
from distcache.node.records import invalidate, read_records
from distcache.node.store import Store
from distcache.train.dataset import CachedDataset
from tests.support import here
from tests.support.buckets import name_of, put_cache
from tests.support.scripted_s3 import ScriptedS3
from tests.train.buckets.reading import batches, equal

pytestmark = pytest.mark.slow


def test_samples_are_those_of_files(
    remote: CachedDataset, files: CachedDataset, server: ScriptedS3
) -> None:
    """All tensors; a process that trains has not sent a single request of its own."""
    for number in (0, 7, 3999):
        for name, values in files[number].items():
            assert torch.equal(remote[number][name], values)
    assert equal(batches(remote), batches(files))
    gets = [request for request in server.requests if request.method == "GET"]
    assert all(request.name.endswith(".bin") for request in gets)
    assert all(request.if_match for request in gets)


def test_all_ranges_of_a_batch_are_asked_for_at_once(
    remote: CachedDataset, server: ScriptedS3
) -> None:
    """So that a batch takes about one round trip."""
    assert remote[0]
    server.latency = 0.2
    server.script()
    begin = time.monotonic()
    remote.__getitems__(range(1, 9))
    asked = len(server.requests)
    assert asked > 10
    assert time.monotonic() - begin < 0.2 * asked / 2
    assert server.most_at_once > asked // 2


@pytest.mark.few(1)
@pytest.mark.parametrize("way", ["fork", "forkserver", "spawn"])
def test_workers(remote: CachedDataset, files: CachedDataset, way: str) -> None:
    """However they are started, also after the parent has read."""
    assert remote[0]
    last = len(remote) - 240  # to the end: torch aborts workers of spawn that are still sending
    ours = batches(remote, 2, way, budget="1M", consumed=last)
    assert len(ours) == 60
    assert equal(ours, batches(files, consumed=last))


def test_the_state_is_that_of_the_sampler(remote: CachedDataset) -> None:
    """What was told ahead is not counted as consumed."""
    sampler = distcache.ResumableSampler(remote, 4)
    ahead = distcache.ReadAhead(sampler, remote)
    iterator = iter(ahead)
    for _ in range(5):
        next(iterator)
    assert ahead.state_dict()["consumed_samples"] == 20
    assert len(ahead) == len(sampler)
    other = distcache.ReadAhead(distcache.ResumableSampler(remote, 4), remote)
    other.load_state_dict(ahead.state_dict())
    assert next(iter(other)) == next(iterator)


def test_where_files_are_read(files: CachedDataset) -> None:
    """Nothing is told to anybody."""
    sampler = distcache.ResumableSampler(files, 4)
    assert list(distcache.ReadAhead(sampler, files))[:2] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert files.fetch_client is None


def test_a_budget_that_is_none(files: CachedDataset) -> None:
    """A budget that is none is refused at once."""
    for budget in ("much", 0, "-1G"):
        with pytest.raises(ConfigError, match="size"):
            distcache.ReadAhead([[0]], files, budget)


def test_without_a_copy(server: ScriptedS3, cache: Path, tmp_path: Path) -> None:
    """Opening a cache in a bucket is an error that says what to do, and asks no store."""
    url = put_cache(server, cache)
    server.script()
    with pytest.raises(NotReady, match="localize"):
        distcache.open(url)
    with pytest.raises(NotReady, match="localize"):
        distcache.open(url, tmp_path / "none")
    assert server.requests == []


def test_opening_touches_no_network(local: Path, server: ScriptedS3) -> None:
    """Nor does looking at what there is."""
    cache = distcache.open("s3://lake/run/c.h5", local)
    assert len(cache.dataset("train")) == 4000
    assert cache.is_local
    assert server.requests == []


def test_whole_copies(
    local: Path, server: ScriptedS3, files: CachedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole copies are read as files: there is no fetcher."""
    here.localize("s3://lake/run/c.h5", local, tokens="copy")
    server.script()
    dataset = distcache.open("s3://lake/run/c.h5", local).dataset("train")
    assert equal(batches(dataset, most=50), batches(files, most=50))
    assert server.requests == []
    assert dataset.fetch_client is None


def test_the_reader_for_megatron(
    local: Path, cache: Path, server: ScriptedS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads exact ranges of any type, and refuses what is not there."""
    monkeypatch.setenv("DISTCACHE_LOCAL_DIR", str(local))
    url = next(read_records(Store(local))).corpora[0].shared + ".bin"
    data = server.objects[name_of(url)]
    reader = distcache.MegatronBinReader(url, None)
    assert reader.read(np.uint16, 10, 20).tobytes() == data[20:40]
    assert reader.read(np.int32, 0, 0).size == 0
    assert [request.size for request in server.requests] == [20]
    with pytest.raises(CorpusError, match="bytes"):
        reader.read(np.uint16, 10, len(data))
    with pytest.raises(NotReady, match="localize"):
        distcache.MegatronBinReader("s3://lake/other.bin")
    # A cache that is localized later is known, too.
    invalidate(Store(local), next(read_records(Store(local))).name)
    with pytest.raises(NotReady, match="localize"):
        distcache.MegatronBinReader(url)
    here.localize("s3://lake/run/c.h5", local)
    assert distcache.MegatronBinReader(url).read(np.uint16, 10, 20).size == 10


def test_the_reader_for_megatron_and_a_whole_copy(
    local: Path, server: ScriptedS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asks no bucket."""
    monkeypatch.setenv("DISTCACHE_LOCAL_DIR", str(local))
    here.localize("s3://lake/run/c.h5", local, tokens="copy")
    url = next(read_records(Store(local))).corpora[0].shared + ".bin"
    server.script()
    found = distcache.MegatronBinReader(url).read(np.uint16, 10, 20)
    assert found.tobytes() == server.objects[name_of(url)][20:40]
    assert server.requests == []
