"""What all kinds of sources promise that the node's fetcher brings ahead of training.

Ranges of objects and of files, and compressed shards.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler

import distcache
from distcache.errors import CorpusError
from distcache.node.records import read_records
from distcache.node.store import Store
from distcache.train.dataset import CachedDataset
from tests.node.agents import flip, run
from tests.support import here
from tests.support.buckets import put_cache
from tests.support.mds_corpora import fields_of, write_tokens
from tests.support.scripted_s3 import ScriptedS3
from tests.train.buckets.reading import batches, end_fetcher, equal, status

pytestmark = pytest.mark.slow

BUDGET = 1 << 20


class Brought(NamedTuple):
    """Samples that are brought ahead, and what they are."""

    open: Callable[[], CachedDataset]
    files: CachedDataset  # the same, read from files
    spoil: Callable[[], None]  # exchanges what they are read from
    nbytes: int  # bytes of all sources


def objects(server: ScriptedS3, cache: Path, root: Path) -> Brought:
    """Return samples of objects of a bucket."""
    url = put_cache(server, cache)
    run(url, root)
    server.script()

    def spoil() -> None:
        for name in [name for name in server.objects if name.endswith(".bin")]:
            server.put(name, server.objects[name][::-1])

    tokens = sum(len(data) for name, data in server.objects.items() if name.endswith(".bin"))
    open_here = lambda: distcache.open(url, root).dataset("train")  # noqa: E731
    return Brought(open_here, distcache.open(cache).dataset("train"), spoil, tokens)


def slow_files(cache: Path, root: Path) -> Brought:
    """Return samples of files of a slow filesystem."""
    here.localize(cache, root, tokens="ahead")
    (record,) = read_records(Store(root))
    paths = [Path(f"{corpus.shared}.bin") for corpus in record.corpora]

    def spoil() -> None:
        for path in paths:
            os.utime(path, ns=(1, 1))

    open_here = lambda: distcache.open(cache, root).dataset("train")  # noqa: E731
    size = sum(path.stat().st_size for path in paths)
    return Brought(open_here, distcache.open(cache).dataset("train"), spoil, size)


def shards(tmp_path: Path, root: Path) -> Brought:
    """Return samples of compressed shards."""
    for name in ("a", "b"):
        data = write_tokens(tmp_path / f"{name}-mds", codec="zstd", per_shard=4)
        here.index(data, tmp_path / name)
    fields = fields_of(str(tmp_path / "a"), str(tmp_path / "b"))
    path = Path(here.build(fields | {"samples": {"train": 1000}}, tmp_path / "caches").path)
    run(path, root, tokens="ahead")
    run(path, tmp_path / "unpacked", tokens="link")
    packed = sorted(tmp_path.glob("*-mds/*.zstd"))

    def spoil() -> None:
        for shard in packed:
            flip(shard, shard.stat().st_size // 2)

    open_here = lambda: distcache.open(path, root).dataset("train")  # noqa: E731
    files = distcache.open(path, tmp_path / "unpacked").dataset("train")
    return Brought(open_here, files, spoil, sum(shard.stat().st_size for shard in packed))


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """The store of the node."""
    yield tmp_path / "local"
    end_fetcher(tmp_path / "local")


@pytest.fixture(params=["objects", "files", "shards"])
def brought(request: pytest.FixtureRequest, cache: Path, tmp_path: Path, root: Path) -> Brought:
    """Samples of one kind of source."""
    if request.param == "files":
        return slow_files(cache, root)
    if request.param == "shards":
        return shards(tmp_path, root)
    return objects(request.getfixturevalue("server"), cache, root)


def test_samples_are_those_of_files(brought: Brought) -> None:
    """All tensors, in any order, announced to nobody."""
    dataset = brought.open()
    assert len(dataset) == len(brought.files)
    for number in (0, 7, len(dataset) - 1, -2, 7):
        for name, values in brought.files[number].items():
            assert torch.equal(dataset[number][name], values)
    assert equal(batches(dataset, most=30), batches(brought.files, most=30))


def test_they_are_ahead(brought: Brought, root: Path) -> None:
    """In the order of the sampler, within the budget; of small sources each byte is read once."""
    dataset = brought.open()
    sampler: Any = distcache.ResumableSampler(dataset, 4)
    sampler = distcache.ReadAhead(sampler, dataset, BUDGET, samples=200)
    found = []
    for batch in DataLoader(dataset, batch_sampler=sampler):
        found.append(batch["tokens"].clone())
        now = status(root)
        assert now.held <= BUDGET
        assert now.budget == BUDGET or not now.streams
    assert equal(found, batches(brought.files, most=len(found)))
    now = status(root)
    assert now.hits > 0.9 * (now.hits + now.misses)
    assert now.fetched <= brought.nbytes
    assert now.queued == 0


@pytest.mark.few(1)
def test_workers(brought: Brought) -> None:
    """Each reads for itself, also after its parent has."""
    dataset = brought.open()
    assert dataset[0]
    last = len(dataset) - 120
    ours = batches(dataset, 2, "fork", budget="1M", consumed=last)
    assert equal(ours, batches(brought.files, consumed=last))


def test_resuming_on_other_ranks(brought: Brought) -> None:
    """It is a new list of samples, and nothing else."""
    dataset = brought.open()
    for ranks in ((0, 3), (2, 3)):
        ours = batches(dataset, budget="1M", ranks=ranks, consumed=400, most=20)
        assert equal(ours, batches(brought.files, ranks=ranks, consumed=400, most=20))


@pytest.mark.parametrize("order", ["sequential", "cyclic"])
def test_batches(brought: Brought, order: str) -> None:
    """The iterator of a rank reads ahead by itself, in any order, and goes on where it stopped."""
    dataset = brought.open()
    ours = distcache.Batches(dataset, 4, order=order, read_ahead="1M")
    theirs = distcache.Batches(brought.files, 4, order=order)
    for _ in range(30):
        assert torch.equal(next(ours)["tokens"], next(theirs)["tokens"])
    other = distcache.Batches(dataset, 4, 0, 1, order=order)
    other.restore_state(ours.save_state())
    assert torch.equal(next(other)["tokens"], next(theirs)["tokens"])
    ours.close()
    other.close()


def test_a_foreign_sampler(brought: Brought) -> None:
    """It is drawn from ahead of its use, in its own order."""
    dataset = brought.open()
    chosen = [[int(i) for i in RandomSampler(range(400))][n : n + 4] for n in range(0, 400, 4)]
    ahead = distcache.ReadAhead(chosen, dataset, "1M")
    assert [list(batch) for batch in ahead] == chosen
    ours = DataLoader(dataset, batch_sampler=distcache.ReadAhead(chosen, dataset, "1M"))  # type: ignore[arg-type]
    theirs = DataLoader(brought.files, batch_sampler=chosen)
    assert all(torch.equal(a["tokens"], b["tokens"]) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.few(1)
@pytest.mark.parametrize("budget", [None, "1M"])
def test_a_killed_fetcher(budget: str | None, brought: Brought, root: Path) -> None:
    """It is started again by whoever needs it, and goes on."""
    dataset = brought.open()
    sampler: Any = distcache.ResumableSampler(dataset, 4)
    if budget is not None:
        sampler = distcache.ReadAhead(sampler, dataset, budget, samples=100)
    wanted = batches(brought.files, most=90)
    for number, (indices, expected) in enumerate(zip(sampler, wanted, strict=False)):
        if number in (20, 50):
            end_fetcher(root)
        found = torch.stack([row["tokens"] for row in dataset.__getitems__(indices)])
        assert torch.equal(found, expected)


def test_an_exchanged_source(brought: Brought, root: Path) -> None:
    """It is an error that names it, for what is read ahead and for what is not."""
    dataset = brought.open()
    assert dataset[0]
    end_fetcher(root)
    brought.spoil()
    for budget in (None, "1M"):
        with pytest.raises(CorpusError, match=r"[a-z]+.*(\.bin|\.mds\.zstd): "):
            batches(dataset, budget=budget, consumed=300)


def test_nothing_stays(brought: Brought, root: Path) -> None:
    """What is ahead are files without names, which end with the fetcher."""
    dataset = brought.open()
    assert len(batches(dataset, budget="1M", most=20)) == 20
    assert {path.name for path in (root / "ahead").iterdir()} <= {
        "socket", "lock", "start.lock", "fetcher.out", "fetcher.lock",
    }  # fmt: skip
