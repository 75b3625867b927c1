"""Training from a bucket, whatever happens meanwhile: the right samples, or one clear error."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import distcache
from distcache.errors import DistcacheError
from distcache.storage.bucket import ODD_ANSWERS
from distcache.storage.timeouts import limits
from distcache.train.dataset import CachedDataset
from tests.support.scripted_s3 import ScriptedS3
from tests.support.waiting import wait_until
from tests.train.buckets.reading import batches, status

pytestmark = pytest.mark.slow


def test_a_store_that_is_away_for_a_while(
    remote: CachedDataset, files: CachedDataset, server: ScriptedS3
) -> None:
    """A store that is away for a while is waited for."""
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
    server: ScriptedS3, hurry: Callable[[float], CachedDataset]
) -> None:
    """It ends the reader with one clear error, after its time."""
    remote = hurry(0.02)
    server.script(always="503")
    with pytest.raises(DistcacheError, match=r"no answer in .* s: status 503 SlowDown") as raised:
        remote.__getitems__(range(50, 60))
    assert "\n" not in str(raised.value)
    server.script()
    assert remote[70]


def told_while_away(
    remote: CachedDataset, server: ScriptedS3
) -> tuple[Iterator[list[int]], list[int]]:
    """Return batches that the read-ahead cannot fetch, and the first of them."""
    server.script(always="503")
    ahead = iter(distcache.ReadAhead(distcache.ResumableSampler(remote, 40), remote, "1M"))
    return ahead, next(ahead)


@pytest.mark.more
def test_a_store_that_stays_away_from_what_is_on_its_way(
    server: ScriptedS3, hurry: Callable[[float], CachedDataset]
) -> None:
    """One error after the same time, however many ranges the read-ahead was fetching."""
    remote = hurry(0.1)
    _ahead, indices = told_while_away(remote, server)
    with pytest.raises(DistcacheError, match="no answer in"):  # not the fetcher's, after twice that
        remote.__getitems__(indices)


@pytest.mark.more
def test_a_store_that_is_away_is_asked_by_one(
    server: ScriptedS3, hurry: Callable[[float], CachedDataset]
) -> None:
    """By one request at a time, if by any: all nodes wait for the store to return."""
    _ahead, indices = told_while_away(hurry(0.01), server)
    assert indices
    time.sleep(5 * limits().object_store)
    before = len(server.requests)
    time.sleep(3 * limits().object_store)
    asked = len(server.requests) - before
    assert asked < 100
    server.script()


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "fault", ["429", "500", "503", "refuse", "reset:10", "truncate:10", "stall:10:1"]
)
def test_a_fault_that_passes(
    fault: str, remote: CachedDataset, files: CachedDataset, server: ScriptedS3
) -> None:
    """A fault that passes costs a request at most."""
    wanted = files.__getitems__(range(50, 60))
    assert remote[0]
    server.script()
    remote.__getitems__(range(50, 60))
    usual = len(server.requests)
    server.script("", fault, "", fault)
    found = remote.__getitems__(range(50, 60))
    assert all(torch.equal(a["tokens"], b["tokens"]) for a, b in zip(found, wanted, strict=True))
    assert usual <= len(server.requests) <= usual + 2


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("always", "words"),
    [
        ("400", "the credentials have expired"),
        ("403", "access is denied"),
        ("403:RequestTimeTooSkewed", "clock"),
        ("404", "no such object"),
        ("301", "region"),
        ("whole", "non-partial"),
        ("short:3", "Requested"),
        ("other:3", "Requested"),
    ],
)
def test_a_fault_that_does_not(
    always: str, words: str, remote: CachedDataset, server: ScriptedS3
) -> None:
    """It is one error that says what it is, after some requests for each range at most."""
    assert remote[0]
    ranges = len(remote.fetched_ranges(range(50, 60)).ranges)
    server.script(always=always)
    with pytest.raises(DistcacheError, match=words) as raised:
        remote.__getitems__(range(50, 60))
    assert "\n" not in str(raised.value)
    assert 0 < len(server.requests) <= ODD_ANSWERS * ranges


def test_a_bit_that_the_disk_has_flipped(
    remote: CachedDataset, files: CachedDataset, local: Path
) -> None:
    """It is noticed when the log is read: the range is fetched again."""
    sampler = distcache.ReadAhead(distcache.ResumableSampler(remote, 4), remote, "1M", samples=80)
    wanted = batches(files, most=15)
    for number, indices in enumerate(sampler):
        if number == 0:
            wait_until(lambda: status(local).queued == 0, "what is read ahead")
            for path in (local / "ahead").glob("*.log"):
                data = bytearray(path.read_bytes())
                data[::7] = bytes(byte ^ 1 for byte in data[::7])
                path.write_bytes(data)
        if number == len(wanted):
            break
        found = torch.stack([row["tokens"] for row in remote.__getitems__(indices)])
        assert torch.equal(found, wanted[number])
