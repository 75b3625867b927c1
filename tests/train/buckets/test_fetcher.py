"""The fetcher that training starts: its secrets, its streams, its end."""

from __future__ import annotations

import base64
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader

import distcache
from distcache.errors import DistcacheError
from distcache.node.ahead.client import fetcher_status
from distcache.node.ahead.protocol import connect_to
from distcache.node.records import read_records
from distcache.node.store import Store
from distcache.train.dataset import CachedDataset
from tests.support.scripted_s3 import ScriptedS3
from tests.support.secrets import MARK, places_with_secrets
from tests.support.waiting import wait_until
from tests.train.buckets.reading import batches, end_fetcher, reached, status

pytestmark = pytest.mark.slow


def test_no_secret_is_kept(
    remote: CachedDataset, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No secret is kept by what is pickled or shown, the store, or the fetcher's command line."""
    batches(remote, budget="1M", most=20)
    assert status(local).fetched
    url = next(read_records(Store(local))).corpora[0].shared + ".bin"
    monkeypatch.setenv("DISTCACHE_LOCAL_DIR", str(local))
    reader = distcache.MegatronBinReader(url)
    assert reader.read(np.uint16, 10, 20).size == 10
    ahead = distcache.ReadAhead(distcache.ResumableSampler(remote, 4), remote, "1M")
    for keeper in (remote, ahead, reader):
        assert MARK not in repr(keeper)
        assert MARK.encode() not in pickle.dumps(keeper)
    assert places_with_secrets(local) == []


def test_the_directory_of_the_fetcher(remote: CachedDataset, local: Path) -> None:
    """The directory of the fetcher is the user's own."""
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

    def has_ended() -> bool:
        try:  # a zombie of this process has no command line
            return b"fetcher" not in Path(f"/proc/{process}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            return True

    wait_until(has_ended, "the fetcher")
    assert fetcher_status(local / "ahead") is None
    assert list((local / "ahead").glob("*.log")) == []


def test_validation_beside_training(
    remote: CachedDataset, files: CachedDataset, local: Path
) -> None:
    """Each has a stream of its own: what was told for one stays ahead."""
    valid = distcache.open("s3://lake/run/c.h5", local).dataset("valid")
    train = iter(distcache.ReadAhead(distcache.ResumableSampler(remote, 4), remote, "8M", 100))
    first = next(train)
    wait_until(lambda: status(local).queued == 0, "what is read ahead")
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
    wait_until(lambda: status(local).streams == 0, "the streams' end")


def test_an_iteration_that_is_broken_off(remote: CachedDataset, local: Path) -> None:
    """It gives its share back, also if workers that were forked meanwhile still live."""
    sampler = distcache.ReadAhead(distcache.ResumableSampler(remote, 4), remote, "8M", 100)
    loader = DataLoader(remote, batch_sampler=sampler, num_workers=2, persistent_workers=True)
    for number, _ in enumerate(loader):
        if number == 3:
            break
    assert len(list(zip(range(5), loader, strict=False))) == 5
    wait_until(lambda: status(local).streams <= 1, "the first stream's end")


def test_modules_in_the_directory_of_training(
    local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fetcher imports no modules from the directory of training."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "queue.py").write_text("raise SystemExit('planted')")
    monkeypatch.chdir(tmp_path / "code")
    assert distcache.open("s3://lake/run/c.h5", local).dataset("train")[0]


def in_session(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Give this process a session of its own of one account."""
    key = base64.b32encode(b"\x81account" + name.encode()[:2]).decode()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", f"ASIA{key}")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", f"{MARK}-{name}")
    monkeypatch.setenv("AWS_SESSION_TOKEN", name)


def test_sessions_of_one_account(
    local: Path, server: ScriptedS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest serves all; if it is refused, another takes its place, and no secret is kept."""
    refused: set[str | None] = set()
    server.on_request = lambda request: "403:ExpiredToken" if request.token in refused else ""

    def reads(position: int) -> str | None:
        server.script()
        dataset = distcache.open("s3://lake/run/c.h5", local).dataset("train")
        assert dataset[position]
        kept.append(dataset)
        return server.requests[-1].token

    kept: list[CachedDataset] = []
    in_session(monkeypatch, "one")
    assert reads(0) == "one"
    process = status(local).process
    in_session(monkeypatch, "two")
    refused.add("one")  # it has expired
    assert reads(20) == "two"
    in_session(monkeypatch, "one")  # of a rank of the first job that connects again
    assert reads(40) == "two"
    in_session(monkeypatch, "three")
    refused.add("three")  # it may not read this
    assert reads(60) == "two"
    refused.add("two")
    with pytest.raises(DistcacheError, match="the credentials have expired"):
        reads(80)
    in_session(monkeypatch, "four")
    assert reads(80) == "four"
    assert status(local).process == process
    assert places_with_secrets(local) == []


def test_the_fetcher_leaves_the_cores_of_the_rank_that_starts_it(
    local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It serves all ranks of the node. It keeps the log of the one before."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        assert reached(local)
    finally:
        os.sched_setaffinity(0, cores)
    first = status(local)
    assert first.cores == len(cores)
    (local / "ahead" / "fetcher.out").write_text("why it died")
    end_fetcher(local)
    assert reached(local)
    assert (local / "ahead" / "fetcher.out.1").read_text() == "why it died"


def test_other_credentials(
    local: Path, server: ScriptedS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They get a fetcher of their own, as soon as the one before has no clients."""
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
    with connect_to(local / "ahead", 10.0):  # whoever only asks how it is has no part in this
        wait_until(lambda: status(local).clients == 2, "the connections' end")  # with this question
        assert other[0]
    assert status(local).process != before
