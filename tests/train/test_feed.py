"""Windows of shards: unpacked ahead of training within a budget, and discarded after it."""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distcache
from distcache.errors import ConfigError, CorpusError, NoSpace, NotReady, ShardWaitWarning
from distcache.node.store import Store
from distcache.node.upkeep import collect, list_store
from distcache.node.windows import Windows
from distcache.ranks.progress import NullProgress
from distcache.storage.timeouts import TimeLimits
from distcache.train import window_gate
from distcache.train.feed import Feeder
from distcache.train.window_gate import least_of
from tests.node.agents import flip, run
from tests.support.caches import build_here
from tests.support.mds_corpora import fields_of, index, write_tokens
from tests.support.mds_writer import write_mds
from tests.support.samples import tokens_of
from tests.train.test_rows import KINDS, sample

pytestmark = pytest.mark.filterwarnings("ignore::distcache.errors.ShardWaitWarning")

WINDOWS: dict[str, Any] = {
    "order": "windows",
    "window": 2,
    "samples": {"train": 900, "valid": 20, "test": 10},
}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache of two corpora of compressed shards, in windows, on this node."""
    for name in ("a", "b"):
        data = write_tokens(tmp_path / f"{name}-mds", codec="zstd", per_shard=4)
        index(data, tmp_path / name)
    fields = fields_of(str(tmp_path / "a"), str(tmp_path / "b")) | WINDOWS
    path = Path(build_here(fields, tmp_path / "caches").path)
    run(path, tmp_path / "local", shards="windows")
    return path


def open_here(cache: Path, tmp_path: Path) -> Any:
    """Open the node's copy."""
    opened = distcache.open(cache, local=tmp_path / "local")
    assert opened.is_local
    return opened


def budget_of(opened: Any, shards: int) -> int:
    """Return the bytes of so many of the largest shards."""
    sizes = np.sort(opened.cache.table("shards")["raw_size"].astype(np.int64))
    return int(sizes[-shards:].sum())


@contextlib.contextmanager
def feeding(feeder: Feeder) -> Iterator[None]:
    """Feed in a thread."""
    stop = threading.Event()
    thread = threading.Thread(target=feeder.run, args=(NullProgress(), stop.is_set))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
        feeder.close()


def test_training_reads_what_is_fed(cache: Path, tmp_path: Path) -> None:
    """All samples in their order; the disk holds no more than the budget; waits are counted."""
    for name in ("a", "b"):
        index(write_tokens(tmp_path / f"{name}-raw", per_shard=4), tmp_path / f"{name}-raw-c")
    raw = [str(tmp_path / f"{name}-raw-c") for name in ("a", "b")]
    fields = fields_of(*raw) | WINDOWS
    expected = tokens_of(distcache.open(build_here(fields, tmp_path / "caches").path))
    opened = open_here(cache, tmp_path)
    budget = budget_of(opened, 9)
    feeder = Feeder(opened._files, budget, threads=2)
    dataset = opened.dataset("train")
    most = 0
    found = []
    with feeding(feeder), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for begin in range(0, len(dataset), 4):
            rows = dataset.__getitems__(list(range(begin, min(begin + 4, len(dataset)))))
            found += [row["tokens"].tolist() for row in rows]
            files = [Path(feeder._windows.bin(source)) for source in range(2)]
            most = max(most, sum(512 * file.stat().st_blocks for file in files))
    assert found == expected
    shards = len(opened.cache.table("shards"))
    assert most <= budget + 4096 * 2 * shards  # holes are whole pages
    assert feeder.unpacked > shards
    assert opened.shard_waits.count > 0
    assert opened.shard_waits.seconds > 0
    assert {entry.category for entry in caught} == {ShardWaitWarning}


def test_it_starts_where_training_resumes(cache: Path, tmp_path: Path) -> None:
    """It starts where training resumes, with what the next samples need, and nothing before."""
    opened = open_here(cache, tmp_path)
    feeder = Feeder(opened._files, budget_of(opened, 6), start=200)
    while feeder.step():
        pass
    dataset = opened.dataset("train")
    assert len(dataset[200]["tokens"]) == 64
    assert opened.shard_waits.count == 0
    feeder.close()
    Feeder(opened._files, budget_of(opened, 6)).close()


def test_rows_are_fed_too(tmp_path: Path) -> None:
    """Rows are unpacked in the order of their use."""
    samples = [sample(n, "x") for n in range(60)]
    index(write_mds(tmp_path / "mds", KINDS, samples, codec="zstd"), tmp_path / "c", column="")
    fields = {
        "sequence_length": 1,
        "order": "windows",
        "window": 2,
        "split": "1",
        "samples": {"train": 130, "valid": 0, "test": 0},
        "blend": [{"path": str(tmp_path / "c"), "weight": 1.0}],
    }
    path = Path(build_here(fields, tmp_path / "caches").path)
    run(path, tmp_path / "local", shards="windows")
    opened = open_here(path, tmp_path)
    rows = opened.rows("train")
    with feeding(Feeder(opened._files, budget_of(opened, 5))):
        numbers = [rows[i]["n"] for i in range(120)]
    assert [sorted(numbers[k : k + 60]) for k in (0, 60)] == [list(range(60))] * 2


def test_nothing_waits_for_ever(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing waits indefinitely: without a feeder the message says what to start."""
    monkeypatch.setattr(window_gate, "limits", lambda: TimeLimits(stalled=0.2))
    opened = open_here(cache, tmp_path)
    with pytest.raises(NotReady, match="start `distcache feed` on this node"):
        opened.dataset("train")[0]


def test_a_shard_that_goes_while_it_is_read(cache: Path, tmp_path: Path) -> None:
    """A shard that goes while it is read is read again, once it is back."""
    opened = open_here(cache, tmp_path)
    feeder = Feeder(opened._files, budget_of(opened, 30))
    while feeder.step():
        pass
    row = opened.cache.shards_of(0)[0]
    calls = []

    def read() -> int:
        calls.append(1)
        if len(calls) == 1:
            feeder._drop((0, 0))
            feeder._fill((0, 0))
        return len(calls)

    assert opened._files.gate.read([(0, 0)], read) == 2
    assert int(row["raw_size"]) > 0
    feeder.close()


def test_what_cannot_be_fed(cache: Path, tmp_path: Path) -> None:
    """Too small a budget, a second feeder, a copy without windows, a shard that was exchanged."""
    run(cache, tmp_path / "all")
    with pytest.raises(ConfigError, match="are unpacked on this node already"):
        run(cache, tmp_path / "all", shards="windows")
    opened = open_here(cache, tmp_path)
    first = Feeder(opened._files, 10)
    with pytest.raises(NoSpace, match="does not hold a single shard"):
        first.step()
    with pytest.raises(NotReady, match="another process feeds"):
        Feeder(opened._files, 10)
    first.close()
    with pytest.raises(ConfigError, match="--start 901: training has 900 samples"):
        Feeder(opened._files, 10, start=901)
    for shard in tmp_path.glob("?-mds/*.zstd"):
        flip(shard, shard.stat().st_size // 2)
    feeder = Feeder(opened._files, budget_of(opened, 4))
    with pytest.raises(CorpusError, match=r"\.mds\.zstd: "):
        feeder.step()
    feeder.close()
    run(cache, tmp_path / "other", shards="none")
    with pytest.raises(NotReady, match="was not localized for windows"):
        Feeder(distcache.open(cache, local=tmp_path / "other")._files, 10)


def test_validation_sets_are_fed(tmp_path: Path) -> None:
    """Each when it is read."""
    valid = []
    for name in ("v1", "v2"):
        samples = [sample(n, name) for n in range(30)]
        index(
            write_mds(tmp_path / f"{name}-mds", KINDS, samples, codec="zstd"),
            tmp_path / name,
            column="",
        )
        valid.append({"path": str(tmp_path / name), "samples": 20})
    fields = {
        "sequence_length": 1,
        "order": "windows",
        "window": 2,
        "samples": {"train": 30, "valid": 0, "test": 0},
        "blend_per_split": {"train": [{"path": str(tmp_path / "v1"), "weight": 1}], "valid": valid},
        "multiple_validation_sets": True,
    }
    path = Path(build_here(fields, tmp_path / "caches").path)
    run(path, tmp_path / "local", shards="windows")
    opened = open_here(path, tmp_path)
    with feeding(Feeder(opened._files, budget_of(opened, 8))):
        for number, name in enumerate(("v1", "v2")):
            rows = opened.rows("valid", number)
            assert {rows[i]["tags"]["of"][0] for i in range(len(rows))} == {name}


def test_windows_go_with_their_cache(cache: Path, tmp_path: Path) -> None:
    """Windows go with their cache, and count as what the store takes."""
    opened = open_here(cache, tmp_path)
    feeder = Feeder(opened._files, budget_of(opened, 4))
    feeder.step()
    feeder.close()
    store = Store(tmp_path / "local")
    name = opened.handle.name
    (held,) = list_store(store)
    assert held.nbytes > Path(Windows(store, name).bin(0)).stat().st_blocks * 512
    del opened, feeder
    collect(store, 0, NullProgress())
    assert not os.listdir(store.windows)


def test_the_least_position_that_counts() -> None:
    """It is that of the slowest process, but not of one that has not read for long."""
    assert least_of([(100.0, 7), (90.0, 3)]) == 3
    assert least_of([(1000.0, 7), (90.0, 3)]) == 7


def test_a_batch_that_the_budget_does_not_hold(cache: Path, tmp_path: Path) -> None:
    """It is an error of training, not a wait without end."""
    opened = open_here(cache, tmp_path)
    dataset = opened.dataset("train")
    with (
        feeding(Feeder(opened._files, budget_of(opened, 2))),
        pytest.raises(NoSpace, match="more than the --budget"),
    ):
        dataset.__getitems__(list(range(200)))


def test_what_is_waited_for_comes_before_what_is_read_ahead(tmp_path: Path) -> None:
    """However little the budget leaves for it, and whoever waits."""
    samples = [{"n": n, "x": bytes(1000)} for n in range(200)]
    kinds = {"n": "int", "x": "bytes"}
    data = write_mds(tmp_path / "mds", kinds, samples, codec="zstd", per_shard=4)
    index(data, tmp_path / "c", column="")
    samples_of = {"train": 160, "valid": 40, "test": 0}
    rows = {"sequence_length": 1, "split": "80,20,0", "samples": samples_of, "window": 4}
    fields = fields_of(str(tmp_path / "c")) | WINDOWS | rows
    path = Path(build_here(fields, tmp_path / "caches").path)
    run(path, tmp_path / "local", shards="windows")
    opened = open_here(path, tmp_path)
    with feeding(Feeder(opened._files, budget_of(opened, 8))):
        for size in (12, 20, 24, 32):
            batches = list(distcache.Batches(opened.rows("valid"), size))
            assert sorted(row["n"] for row in batches[0])[0] >= 160
    with feeding(Feeder(opened._files, budget_of(opened, 1))):
        train, valid = opened.rows("train"), opened.rows("valid")
        for step in range(8):
            assert train[step]["n"] < 160 <= valid[step]["n"]


def test_a_batch_that_is_filled_up_does_not_go_back(cache: Path, tmp_path: Path) -> None:
    """To the first sample: the feeder stays where training is."""
    opened = open_here(cache, tmp_path)
    dataset = opened.dataset("train")
    with feeding(Feeder(opened._files, budget_of(opened, 8))):
        batch = dataset.__getitems__([len(dataset) - 1, None])
        positions = window_gate.live_readers(opened._files.gate._windows.root).positions
    assert positions == {"train.0": len(dataset) - 1}
    assert batch[1]["loss_mask"].sum() == 0


def test_a_feeder_that_is_ahead_of_who_has_ended(cache: Path, tmp_path: Path) -> None:
    """It stays where training was: the next process continues there."""
    opened = open_here(cache, tmp_path)
    feeder = Feeder(opened._files, budget_of(opened, 6))
    process = open_here(cache, tmp_path)
    process._files.gate.publish("train", 0, 500)
    feeder.step()
    del process
    assert window_gate.live_readers(feeder._windows.root) == ({}, [])
    assert feeder._needed_now()[:1] == list(feeder._ahead("train.0", 500))[:1]
    feeder.close()
