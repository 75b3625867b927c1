"""Compressed shards that the node's fetcher unpacks ahead of training, each once, in a budget."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import distcache
from distcache.errors import ConfigError, NoSpace
from distcache.node.store import Store
from distcache.node.upkeep import collect, list_store
from distcache.ranks.progress import NullProgress
from tests.node.agents import run
from tests.support import here
from tests.support.mds_corpora import fields_of, write_tokens
from tests.support.mds_writer import write_mds
from tests.support.processes import clean_environment
from tests.support.samples import tokens_of
from tests.train.buckets.reading import end_fetcher, status
from tests.train.test_rows import KINDS, sample

pytestmark = pytest.mark.slow

WINDOWS: dict[str, Any] = {
    "shuffle": "windows",
    "window": 2,
    "samples": {"train": 900, "valid": 20, "test": 10},
}


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """The store of this node."""
    yield tmp_path / "local"
    end_fetcher(tmp_path / "local")


@pytest.fixture
def cache(tmp_path: Path, root: Path) -> Path:
    """A cache of two corpora of compressed shards, which are unpacked ahead on this node."""
    for name in ("a", "b"):
        data = write_tokens(tmp_path / f"{name}-mds", codec="zstd", per_shard=4)
        here.index(data, tmp_path / name)
    fields = fields_of(str(tmp_path / "a"), str(tmp_path / "b")) | WINDOWS
    path = Path(here.build(fields, tmp_path / "caches").path)
    run(path, root, tokens="ahead")
    return path


@pytest.fixture
def expected(cache: Path, tmp_path: Path) -> list[list[int]]:
    """The tokens of all samples, read from raw shards."""
    for name in ("a", "b"):
        here.index(write_tokens(tmp_path / f"{name}-raw", per_shard=4), tmp_path / f"{name}-raw-c")
    raw = [str(tmp_path / f"{name}-raw-c") for name in ("a", "b")]
    fields = fields_of(*raw) | WINDOWS
    return tokens_of(distcache.open(here.build(fields, tmp_path / "caches").path))


def open_here(cache: Path, root: Path) -> Any:
    """Open the node's copy."""
    opened = distcache.open(cache, local=root)
    assert opened.is_local
    return opened


def budget_of(opened: Any, shards: int) -> int:
    """Return the bytes of so many of the largest shards, and what their places are rounded to."""
    sizes = np.sort(opened.cache.table("shards")["raw_size"].astype(np.int64))
    return int(sizes[-shards:].sum()) + 64 * shards


def rows_cache(tmp_path: Path, root: Path, codec: str = "zstd", **fields: Any) -> Path:
    """Return a cache of rows in compressed shards, which are unpacked ahead on this node."""
    samples = [sample(n, "x") for n in range(60)]
    here.index(write_mds(tmp_path / "mds", KINDS, samples, codec=codec), tmp_path / "c", column="")
    rows = {
        "sequence_length": 1,
        "shuffle": "windows",
        "window": 2,
        "split": "1",
        "samples": {"train": 130, "valid": 0, "test": 0},
        "blend": [{"path": str(tmp_path / "c"), "weight": 1.0}],
    }
    path = Path(here.build(rows | fields, tmp_path / "caches").path)
    run(path, root, tokens="ahead")
    return path


@pytest.mark.parametrize("workers", [0, 2])
def test_training_reads_what_is_unpacked(
    workers: int, cache: Path, expected: list[list[int]], root: Path
) -> None:
    """All samples in their order; the disk holds no more than the budget."""
    opened = open_here(cache, root)
    dataset = opened.dataset("train")
    budget = budget_of(opened, 9)
    sampler = distcache.ReadAhead(distcache.ResumableSampler(dataset, 4), dataset, budget)
    found = []
    for batch in DataLoader(dataset, batch_sampler=sampler, num_workers=workers):
        found += batch["tokens"].tolist()
        now = status(root)
        assert now.held <= budget
        assert now.budget == budget or not now.streams
    assert found == expected[: len(found)]
    assert len(found) == len(expected) // 4 * 4


def test_each_shard_is_unpacked_once(cache: Path, expected: list[list[int]], root: Path) -> None:
    """Within a budget that holds all, by whomever they are read, announced or not."""
    opened = open_here(cache, root)
    dataset = opened.dataset("train")
    stored = sum(int(row["zip_size"]) for row in opened.cache.table("shards"))
    for begin in range(0, 200, 8):
        rows = dataset.__getitems__(list(range(begin, begin + 8)))
        assert [row["tokens"].tolist() for row in rows] == expected[begin : begin + 8]
    for _ in range(2):
        sampler = distcache.ReadAhead(distcache.ResumableSampler(dataset, 8), dataset, "64M")
        assert len(list(DataLoader(dataset, batch_sampler=sampler))) == len(expected) // 8
    assert status(root).fetched <= stored


def test_training_and_validation_beside_one_another(cache: Path, root: Path) -> None:
    """A budget of few shards is enough for both, also if only one of them announces."""
    opened = open_here(cache, root)
    train, valid = opened.dataset("train"), opened.dataset("valid")
    sampler = distcache.ResumableSampler(train, 4)
    batches = iter(distcache.ReadAhead(sampler, train, budget_of(opened, 4)))
    for step in range(10):
        assert len(train.__getitems__(next(batches))) == 4
        assert len(valid[step]["tokens"]) == 64
    batches.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("codec", ["zstd", "br", "gz", "snappy"])
def test_rows_are_unpacked_too(codec: str, tmp_path: Path, root: Path) -> None:
    """In the order of their use, for `Batches` as for a sampler, and one by one."""
    opened = open_here(rows_cache(tmp_path, root, codec), root)
    rows = opened.rows("train")
    numbers = [row["n"] for batch in distcache.Batches(rows, 4) for row in batch]
    assert numbers == [rows[i]["n"] for i in range(len(numbers))]
    assert [sorted(numbers[k : k + 60]) for k in (0, 60)] == [list(range(60))] * 2
    many = rows.__getitems__([*range(130), *range(130), *range(130)])
    assert [row["n"] for row in many[:120]] == numbers[:120]


def test_a_sample_of_many_shards(tmp_path: Path, root: Path) -> None:
    """More than files may be open for one sample."""
    documents = [np.arange(n, n + 3, dtype=np.int32) for n in range(300)]
    kinds = {"tokens": "ndarray:int32"}
    data = write_mds(
        tmp_path / "mds", kinds, [{"tokens": d} for d in documents], codec="zstd", per_shard=1
    )
    here.index(data, tmp_path / "c")
    fields = fields_of(str(tmp_path / "c")) | {
        "sequence_length": 400,
        "samples": {"train": 2, "valid": 0, "test": 0},
        "split": "1",
    }
    path = Path(here.build(fields, tmp_path / "caches").path)
    run(path, root, tokens="ahead")
    run(path, tmp_path / "unpacked", tokens="link")
    expected = tokens_of(open_here(path, tmp_path / "unpacked"))
    dataset = open_here(path, root).dataset("train")
    batches = iter(distcache.ReadAhead([[0], [1]] * 40, dataset, "64M", samples=8))
    for number, batch in enumerate(batches):
        (row,) = dataset.__getitems__(batch)
        assert row["tokens"].tolist() == expected[number % 2]
    assert status(root).queued == 0


def test_corpora_with_raw_shards_beside_compressed_ones(tmp_path: Path, root: Path) -> None:
    """Raw ones are read from where they are."""
    for name, codec in (("a", "zstd"), ("b", "")):
        here.index(
            write_tokens(tmp_path / f"{name}-mds", codec=codec, per_shard=4), tmp_path / name
        )
    fields = fields_of(str(tmp_path / "a"), str(tmp_path / "b"))
    path = Path(here.build(fields, tmp_path / "caches").path)
    run(path, root, tokens="ahead")
    run(path, tmp_path / "unpacked", tokens="link")
    assert tokens_of(open_here(path, root)) == tokens_of(open_here(path, tmp_path / "unpacked"))


def test_validation_sets(tmp_path: Path, root: Path) -> None:
    """Each is unpacked when it is read."""
    valid = []
    for name in ("v1", "v2"):
        samples = [sample(n, name) for n in range(30)]
        data = write_mds(tmp_path / f"{name}-mds", KINDS, samples, codec="zstd")
        here.index(data, tmp_path / name, column="")
        valid.append({"path": str(tmp_path / name), "samples": 20})
    fields = {
        "sequence_length": 1,
        "shuffle": "windows",
        "window": 2,
        "samples": {"train": 30, "valid": 0, "test": 0},
        "blend_per_split": {"train": [{"path": str(tmp_path / "v1"), "weight": 1}], "valid": valid},
        "multiple_validation_sets": True,
    }
    path = Path(here.build(fields, tmp_path / "caches").path)
    run(path, root, tokens="ahead")
    opened = open_here(path, root)
    for number, name in enumerate(("v1", "v2")):
        rows = opened.rows("valid", number)
        assert {rows[i]["tags"]["of"][0] for i in range(len(rows))} == {name}


def test_a_budget_that_holds_no_shard(cache: Path, root: Path) -> None:
    """It is an error of training, which says what to do."""
    dataset = open_here(cache, root).dataset("train")
    sampler = distcache.ReadAhead(distcache.ResumableSampler(dataset, 4), dataset, 100)
    with pytest.raises(NoSpace, match="more than the budget 100 of what is read ahead"):
        next(iter(sampler))


def test_what_cannot_be_unpacked_ahead(cache: Path, tmp_path: Path, root: Path) -> None:
    """What is unpacked already, and a copy without shards."""
    run(cache, tmp_path / "all")
    with pytest.raises(ConfigError, match="are unpacked on this node already"):
        run(cache, tmp_path / "all", tokens="ahead")
    assert open_here(cache, root).shard_waits.count == 0


def test_nothing_stays_beside_what_is_ahead(cache: Path, root: Path) -> None:
    """What is unpacked is a file without a name, which ends with the fetcher."""
    opened = open_here(cache, root)
    assert opened.dataset("train")[0]
    (held,) = list_store(Store(root))
    assert {path.name for path in (root / "ahead").iterdir()} <= {
        "socket", "lock", "start.lock", "fetcher.out", "fetcher.lock",
    }  # fmt: skip
    assert held.used
    del opened
    collect(Store(root), 0, NullProgress())
    assert not list_store(Store(root))


def test_a_trainer_decompresses_nothing(cache: Path, root: Path) -> None:
    """It has no library for it, only the fetcher does."""
    code = (
        "import sys, distcache\n"
        "dataset = distcache.open(sys.argv[1], local=sys.argv[2]).dataset('train')\n"
        "assert len(dataset[0]['tokens']) == 64\n"
        "found = {'zstandard', 'cramjam', 'obstore'} & sys.modules.keys()\n"
        "assert not found, found\n"
    )
    words = [sys.executable, "-c", code, str(cache), str(root)]
    subprocess.run(words, check=True, env=clean_environment(), timeout=60)
