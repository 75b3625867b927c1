"""Training from a bucket: the samples of files, by exact ranges, whatever happens meanwhile."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler

import distcache
from distcache.errors import ConfigError, CorpusError, DistcacheError, NotReady
from distcache.fetcher.client import fetcher_status
from distcache.fetcher.protocol import Status
from distcache.node.localize import localize
from distcache.node.records import LocalizeOptions, read_records
from distcache.node.store import Store
from distcache.ranks.communicator import SerialCommunicator
from distcache.timeouts import limits
from distcache.train.dataset import CachedDataset
from tests.buckets import name_of, put_cache
from tests.storage.buckets import fresh_process_of_buckets
from tests.storage.scripted_s3 import ScriptedS3

Batches = list[torch.Tensor]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedS3]:
    """An empty bucket."""
    with ScriptedS3() as s3, fresh_process_of_buckets(monkeypatch, s3.environment):
        yield s3


@pytest.fixture
def files(cache: Path) -> CachedDataset:
    """The samples, read from files."""
    return distcache.open(cache).dataset("train")


@pytest.fixture
def local(server: ScriptedS3, cache: Path, tmp_path: Path) -> Iterator[Path]:
    """The store of a node that has localized the cache from the bucket."""
    root = tmp_path / "local"
    localize(SerialCommunicator(), put_cache(server, cache), LocalizeOptions(directory=str(root)))
    server.script()
    yield root
    end_fetcher(root)


@pytest.fixture
def remote(local: Path) -> CachedDataset:
    """The samples, read from the bucket."""
    return distcache.open("s3://lake/run/c.h5", local).dataset("train")


def status(root: Path) -> Status:
    """Return how the fetcher is."""
    found = fetcher_status(root / "ahead")
    assert found is not None
    return found


def end_fetcher(root: Path) -> None:
    """Kill the fetcher, if there is one, and wait until it is gone."""
    found = fetcher_status(root / "ahead")
    if found is not None:
        os.kill(found.process, signal.SIGKILL)
        while fetcher_status(root / "ahead") is not None:
            time.sleep(0.01)


def batches(
    dataset: CachedDataset,
    workers: int = 0,
    way: str | None = None,
    *,
    budget: str | None = None,
    ranks: tuple[int, int] = (0, 1),
    consumed: int = 0,
    most: int = 200,
) -> Batches:
    """Return the first batches of a rank."""
    sampler: Any = distcache.ResumableSampler(dataset, 4, *ranks, consumed_samples=consumed)
    if budget is not None:
        sampler = distcache.ReadAhead(sampler, dataset, budget, samples=200)
    loader = DataLoader(
        dataset, batch_sampler=sampler, num_workers=workers, multiprocessing_context=way
    )
    found = []
    for batch in loader:
        found.append(batch["tokens"].clone())
        if len(found) == most:
            break
    return found


def equal(one: Batches, other: Batches) -> bool:
    """Return whether batches are the same, in the same order."""
    return len(one) == len(other) and all(map(torch.equal, one, other))


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


@pytest.mark.parametrize("way", ["fork", "forkserver", "spawn"])
def test_workers(remote: CachedDataset, files: CachedDataset, way: str) -> None:
    """However they are started, also after the parent has read."""
    assert remote[0]
    assert equal(batches(remote, 2, way, budget="1M", most=60), batches(files, most=60))


def test_read_ahead(
    remote: CachedDataset, files: CachedDataset, server: ScriptedS3, local: Path
) -> None:
    """Each byte is fetched once, before it is read, in the order of the sampler."""
    ours = batches(remote, budget="4M")
    found = status(local)
    assert equal(ours, batches(files))
    assert found.hits > 0.9 * (found.hits + found.misses)
    assert found.fetched <= 1.05 * found.used + 200 * 600  # some are ahead of the last batch
    assert found.held <= 4 << 20


def test_resuming_on_other_ranks(remote: CachedDataset, files: CachedDataset) -> None:
    """Is a new list of samples, and nothing else."""
    for ranks in ((0, 3), (2, 3)):
        ours = batches(remote, budget="1M", ranks=ranks, consumed=400, most=40)
        assert equal(ours, batches(files, ranks=ranks, consumed=400, most=40))


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


@pytest.mark.parametrize("order", ["sequential", "cyclic"])
def test_batches(remote: CachedDataset, files: CachedDataset, order: str) -> None:
    """The iterator of a rank reads ahead by itself, in any order, and goes on where it stopped."""
    ours = distcache.Batches(remote, 4, order=order, read_ahead="1M")
    theirs = distcache.Batches(files, 4, order=order)
    for _ in range(30):
        assert torch.equal(next(ours)["tokens"], next(theirs)["tokens"])
    other = distcache.Batches(remote, 4, 0, 1, order=order)
    other.restore_state(ours.save_state())
    assert torch.equal(next(other)["tokens"], next(theirs)["tokens"])
    ours.close()
    other.close()


def test_a_foreign_sampler(remote: CachedDataset, files: CachedDataset, local: Path) -> None:
    """Is drawn from ahead of its use, in its own order."""
    chosen = [[int(i) for i in RandomSampler(range(400))][n : n + 4] for n in range(0, 400, 4)]
    ahead = distcache.ReadAhead(chosen, remote, "1M")
    assert [list(batch) for batch in ahead] == chosen
    ours = DataLoader(remote, batch_sampler=distcache.ReadAhead(chosen, remote, "1M"))  # type: ignore[arg-type]
    theirs = DataLoader(files, batch_sampler=chosen)
    assert all(torch.equal(a["tokens"], b["tokens"]) for a, b in zip(ours, theirs, strict=True))
    assert status(local).hits > 0


def test_where_files_are_read(files: CachedDataset) -> None:
    """Nothing is told to anybody."""
    sampler = distcache.ResumableSampler(files, 4)
    assert list(distcache.ReadAhead(sampler, files))[:2] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert files.fetch_client is None


def test_a_budget_that_is_none(files: CachedDataset) -> None:
    """Is refused at once."""
    for budget in ("much", 0, "-1G"):
        with pytest.raises(ConfigError, match="size"):
            distcache.ReadAhead([[0]], files, budget)


@pytest.mark.parametrize("budget", [None, "1M"])
def test_a_killed_fetcher(
    budget: str | None, remote: CachedDataset, files: CachedDataset, local: Path
) -> None:
    """Is started again by whoever needs it, and goes on."""
    sampler: Any = distcache.ResumableSampler(remote, 4)
    if budget is not None:
        sampler = distcache.ReadAhead(sampler, remote, budget, samples=100)
    wanted = batches(files, most=90)
    killed = []
    for number, indices in enumerate(sampler):
        if number == len(wanted):
            break
        if number in (20, 50):
            killed.append(status(local).process)
            end_fetcher(local)
        found = torch.stack([row["tokens"] for row in remote.__getitems__(indices)])
        assert torch.equal(found, wanted[number])
    assert status(local).process not in killed


def test_a_changed_object(remote: CachedDataset, server: ScriptedS3, local: Path) -> None:
    """Is an error that names it, for what is read ahead and for what is not."""
    assert remote[0]
    for name in [name for name in server.objects if name.endswith(".bin")]:
        server.put(name, server.objects[name][::-1])
    with pytest.raises(CorpusError, match=r"s3://lake/run/corpora/.*\.bin: is another object"):
        remote.__getitems__(range(100, 140))
    with pytest.raises(CorpusError, match="is another object"):
        batches(remote, budget="1M")
    with pytest.raises(CorpusError, match="is another object"):
        batches(remote, 2, "fork")


def test_a_store_that_is_away_for_a_while(
    remote: CachedDataset, files: CachedDataset, server: ScriptedS3
) -> None:
    """Is waited for."""
    sampler = distcache.ReadAhead(distcache.ResumableSampler(remote, 4), remote, "1M", samples=100)
    wanted = batches(files, most=60)
    for number, indices in enumerate(sampler):
        if number == len(wanted):
            break
        if number == 10:
            server.script(*40 * ["refuse"], *40 * ["503"])
        found = torch.stack([row["tokens"] for row in remote.__getitems__(indices)])
        assert torch.equal(found, wanted[number])


def test_a_store_that_stays_away(
    local: Path, server: ScriptedS3, scale_time: Callable[[float], None]
) -> None:
    """Ends the reader with one clear error, after its time."""
    scale_time(0.02)
    remote = distcache.open("s3://lake/run/c.h5", local).dataset("train")
    assert remote[0]
    server.script(always="503")
    with pytest.raises(DistcacheError, match=r"no answer in .* s: status 503 SlowDown") as raised:
        remote.__getitems__(range(50, 60))
    assert "\n" not in str(raised.value)
    server.script()
    assert remote[70]


def told_while_away(
    local: Path, server: ScriptedS3
) -> tuple[CachedDataset, Iterator[list[int]], list[int]]:
    """Return a dataset, batches that the read-ahead cannot fetch, and the first of them."""
    remote = distcache.open("s3://lake/run/c.h5", local).dataset("train")
    assert remote[0]
    server.script(always="503")
    ahead = iter(distcache.ReadAhead(distcache.ResumableSampler(remote, 40), remote, "1M"))
    return remote, ahead, next(ahead)


@pytest.mark.long
def test_a_store_that_stays_away_from_what_is_on_its_way(
    local: Path, server: ScriptedS3, scale_time: Callable[[float], None]
) -> None:
    """One error after the same time, however many ranges the read-ahead was fetching."""
    scale_time(0.1)
    remote, _ahead, indices = told_while_away(local, server)
    with pytest.raises(DistcacheError, match="no answer in"):  # not the fetcher's, after twice that
        remote.__getitems__(indices)


@pytest.mark.long
def test_a_store_that_is_away_is_asked_by_one(
    local: Path, server: ScriptedS3, scale_time: Callable[[float], None]
) -> None:
    """Of the read-ahead's threads, once each has waited: all nodes wait for the store to return."""
    scale_time(0.01)
    _remote, _ahead, indices = told_while_away(local, server)
    assert indices
    time.sleep(5 * limits().object_store)
    before = len(server.requests)
    time.sleep(3 * limits().object_store)
    asked = len(server.requests) - before
    assert 0 < asked < 100
    server.script()


def test_expired_credentials(remote: CachedDataset, server: ScriptedS3) -> None:
    """Are an error that says so."""
    assert remote[0]
    server.script(always="400")
    with pytest.raises(DistcacheError, match="the credentials have expired"):
        remote.__getitems__(range(50, 60))


def test_a_bit_that_the_disk_has_flipped(
    remote: CachedDataset, files: CachedDataset, local: Path
) -> None:
    """Is noticed when the log is read: the range is fetched again."""
    sampler = distcache.ReadAhead(distcache.ResumableSampler(remote, 4), remote, "1M", samples=80)
    wanted = batches(files, most=15)
    for number, indices in enumerate(sampler):
        if number == 0:
            while status(local).queued:
                time.sleep(0.01)
            for path in (local / "ahead").glob("*.log"):
                data = bytearray(path.read_bytes())
                data[::7] = bytes(byte ^ 1 for byte in data[::7])
                path.write_bytes(data)
        if number == len(wanted):
            break
        found = torch.stack([row["tokens"] for row in remote.__getitems__(indices)])
        assert torch.equal(found, wanted[number])


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
    """Are read as files: there is no fetcher."""
    options = LocalizeOptions(directory=str(local), copy=True)
    localize(SerialCommunicator(), "s3://lake/run/c.h5", options)
    server.script()
    dataset = distcache.open("s3://lake/run/c.h5", local).dataset("train")
    assert equal(batches(dataset, most=50), batches(files, most=50))
    assert server.requests == []
    assert dataset.fetch_client is None


def test_a_slow_shared_filesystem(cache: Path, files: CachedDataset, tmp_path: Path) -> None:
    """Is read ahead in the same way."""
    root = tmp_path / "local"
    localize(SerialCommunicator(), cache, LocalizeOptions(directory=str(root), read_ahead=True))
    dataset = distcache.open(cache, root).dataset("train")
    try:
        assert equal(batches(dataset, budget="1M"), batches(files))
        found = status(root)
        assert found.hits > 0.9 * (found.hits + found.misses)
        assert found.requests == 0
        corpus = next(read_records(Store(root))).corpora[0]
        path = Path(f"{corpus.shared}.bin")
        os.utime(path, ns=(1, 1))
        end_fetcher(root)
        with pytest.raises(CorpusError, match="another file than when it was localized"):
            dataset.__getitems__(range(1000, 1050))
        os.utime(path, ns=(1, corpus.bin_version.modified if corpus.bin_version else 0))
    finally:
        end_fetcher(root)


def test_the_reader_for_megatron(
    local: Path, cache: Path, server: ScriptedS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads exact ranges of any type, and refuses what is not there."""
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


def test_no_secret_is_kept(remote: CachedDataset, local: Path, server: ScriptedS3) -> None:
    """By a dataset that is pickled, the store, or the fetcher's command line."""
    batches(remote, budget="1M", most=20)
    command = Path(f"/proc/{status(local).process}/cmdline").read_bytes()
    texts = [pickle.dumps(remote), repr(remote).encode(), command]
    texts += [path.read_bytes() for path in local.rglob("*") if path.is_file()]
    assert b"knows-it" not in b"".join(texts)


def test_the_directory_of_the_fetcher(remote: CachedDataset, local: Path) -> None:
    """Is the user's own; the fetcher ends when its clients are gone."""
    assert remote[0]
    assert (local / "ahead").stat().st_mode & 0o077 == 0


def test_a_fetcher_without_clients(local: Path, scale_time: Callable[[float], None]) -> None:
    """Ends, and leaves nothing that was read ahead."""
    scale_time(0.1)
    dataset = distcache.open("s3://lake/run/c.h5", local).dataset("train")
    batches(dataset, budget="1M", most=20)
    process = status(local).process
    client = dataset.fetch_client
    assert client is not None
    client.close()
    end = time.monotonic() + 60
    while Path(f"/proc/{process}/cmdline").exists() and time.monotonic() < end:
        if b"fetcher" not in Path(f"/proc/{process}/cmdline").read_bytes():
            break  # it is a zombie of this process
        time.sleep(0.05)
    assert fetcher_status(local / "ahead") is None
    assert list((local / "ahead").glob("*.log")) == []


def test_validation_beside_training(
    remote: CachedDataset, files: CachedDataset, local: Path
) -> None:
    """Each has a stream of its own: what was told for one stays ahead."""
    valid = distcache.open("s3://lake/run/c.h5", local).dataset("valid")
    train = iter(distcache.ReadAhead(distcache.ResumableSampler(remote, 4), remote, "8M", 100))
    first = next(train)
    while status(local).queued:
        time.sleep(0.01)
    other = iter(distcache.ReadAhead(distcache.ResumableSampler(valid, 4), valid, "8M", 100))
    valid.__getitems__(next(other))
    assert status(local).streams == 2
    before = status(local).misses
    remote.__getitems__(first)
    for _ in range(10):
        remote.__getitems__(next(train))
    assert status(local).misses == before
    other.close()
    train.close()
    end = time.monotonic() + 30
    while status(local).streams and time.monotonic() < end:
        time.sleep(0.01)
    assert status(local).streams == 0


def test_an_iteration_that_is_broken_off(remote: CachedDataset, local: Path) -> None:
    """Gives its share back, also if workers that were forked meanwhile still live."""
    sampler = distcache.ReadAhead(distcache.ResumableSampler(remote, 4), remote, "8M", 100)
    loader = DataLoader(remote, batch_sampler=sampler, num_workers=2, persistent_workers=True)
    for number, _ in enumerate(loader):
        if number == 3:
            break
    assert len(list(zip(range(5), loader, strict=False))) == 5
    assert status(local).streams <= 1


def test_modules_in_the_directory_of_training(
    local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Are none of the fetcher's."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "queue.py").write_text("raise SystemExit('planted')")
    monkeypatch.chdir(tmp_path / "code")
    assert distcache.open("s3://lake/run/c.h5", local).dataset("train")[0]


def test_other_credentials(
    local: Path, server: ScriptedS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Get a fetcher of their own, as soon as the one before has no clients."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "expired")
    dataset = distcache.open("s3://lake/run/c.h5", local).dataset("train")
    assert dataset[0]
    before = status(local).process
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "renewed")
    other = distcache.open("s3://lake/run/c.h5", local).dataset("train")
    with pytest.raises(DistcacheError, match="other credentials or endpoints"):
        other[0]
    client = dataset.fetch_client
    assert client is not None
    client.close()
    while status(local).clients > 1:  # this question is one
        time.sleep(0.01)
    assert other[0]
    assert status(local).process != before


def test_the_reader_for_megatron_and_a_whole_copy(
    local: Path, server: ScriptedS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asks no bucket."""
    monkeypatch.setenv("DISTCACHE_LOCAL_DIR", str(local))
    options = LocalizeOptions(directory=str(local), copy=True)
    localize(SerialCommunicator(), "s3://lake/run/c.h5", options)
    url = next(read_records(Store(local))).corpora[0].shared + ".bin"
    server.script()
    found = distcache.MegatronBinReader(url).read(np.uint16, 10, 20)
    assert found.tobytes() == server.objects[name_of(url)][20:40]
    assert server.requests == []
