"""Batches read ahead of training, and memory of batches that is used again."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import distcache
from distcache.errors import ConfigError
from distcache.train.batch import LARGE, BatchLayout, BatchMemory
from tests.support import here
from tests.train.test_rows import count_of, fields_of, write_rows


@pytest.fixture
def rows(tmp_path: Path) -> Any:
    """Rows of two corpora."""
    prefixes = [write_rows(tmp_path, name) for name in ("speech", "music")]
    built = here.build(fields_of(*prefixes), tmp_path / "caches")
    return distcache.open(built.path).rows("train", map=count_of)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("order", ["sequential", "cyclic"])
def test_ranks_share_all_samples(rows: Any, workers: int, order: str) -> None:
    """Disjoint, whatever is read ahead."""
    ranks = [distcache.Batches(rows, 5, rank, 3, workers=workers, order=order) for rank in range(3)]
    steps = [[next(batches) for batches in ranks] for _ in range(len(rows) // 15)]
    found = [row for step in steps for batch in step for row in batch]
    assert sorted(found) == sorted(rows[i] for i in range(len(steps) * 15))
    if order == "sequential":
        assert found == [rows[i] for i in range(len(steps) * 15)]
        with pytest.raises(StopIteration):
            next(ranks[0])
    else:
        assert len(next(ranks[0])) == 5


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("order", ["sequential", "cyclic"])
def test_a_state_goes_on_exactly(rows: Any, workers: int, order: str) -> None:
    """A state continues exactly after what was served, on another number of ranks, through JSON."""
    two = [distcache.Batches(rows, 4, rank, 2, workers=workers, order=order) for rank in range(2)]
    for _ in range(6):
        for batches in two:
            next(batches)
    states = [json.loads(json.dumps(batches.save_state())) for batches in two]
    assert states[0] == states[1]
    assert states[0]["consumed_samples"] == 48
    coming = [sorted(row for batches in two for row in next(batches)) for _ in range(4)]
    one = distcache.Batches(rows, 8, workers=workers, order=order)
    next(one)
    one.restore_state(states[0])
    assert one.save_state()["consumed_samples"] == 48
    assert [sorted(next(one)) for _ in range(4)] == coming
    one.close()
    assert len(next(one)) == 8
    with pytest.raises(ConfigError, match="not the state of a sampler"):
        one.restore_state({"x": 1})


@pytest.mark.slow
def test_batches_arrive_while_a_step_runs(rows: Any) -> None:
    """The next are made by then."""
    made: list[float] = []

    def collate(some: list[Any]) -> list[Any]:
        made.append(time.monotonic())
        return some

    batches = distcache.Batches(rows, 4, collate=collate, ahead=3)
    next(batches)
    deadline = time.monotonic() + 10
    while len(made) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(made) >= 3


@pytest.mark.slow
def test_tokens_and_their_tensors(cache: Path) -> None:
    """Tokens and their tensors are as a loader has them."""
    train = distcache.open(cache).dataset("train")
    batches = distcache.Batches(train, 4)
    loader = torch.utils.data.DataLoader(train, batch_size=4)
    for found, expected in zip(batches, loader, strict=False):
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    with pytest.raises(ConfigError, match="ahead is -1"):
        distcache.Batches(train, 4, ahead=-1)
    with pytest.raises(ConfigError, match="the dataset is 10"):
        distcache.Batches(10, 4)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_batch_that_failed_comes_again(rows: Any) -> None:
    """An error is not the end of the data."""
    failing = [True]

    def collate(some: list[Any]) -> list[Any]:
        if failing[0] and some[0] == rows[8]:
            raise OSError("a filesystem failed")
        return some

    batches = distcache.Batches(rows, 4, collate=collate)
    assert next(batches)[0] == rows[0]
    assert next(batches)[0] == rows[4]
    for _ in range(2):
        with pytest.raises(OSError, match="a filesystem failed"):
            next(batches)
    failing[0] = False
    assert next(batches)[0] == rows[8]
    assert batches.save_state()["consumed_samples"] == 12


@pytest.mark.slow
def test_errors_reach_whoever_asks(rows: Any) -> None:
    """Errors reach whoever asks, and not only a log of a thread."""

    def collate(_: list[Any]) -> None:
        raise ValueError("no batch")

    for workers in (0, 1):
        with pytest.raises(ValueError, match="no batch"):
            next(distcache.Batches(rows, 4, collate=collate, workers=workers))


SHAPES = {"tokens": ((3, LARGE), torch.int64), "mask": ((3, 5), torch.float32)}


def test_what_is_held_stays() -> None:
    """What is held stays, even if only a part of one tensor is, as an array of NumPy."""
    memory = BatchMemory()
    batch = memory.tensors(BatchLayout(SHAPES), batch=True)
    batch["tokens"].fill_(7)
    held = batch["tokens"][0].numpy()
    del batch
    for _ in range(6):
        for tensor in memory.tensors(BatchLayout(SHAPES), batch=True).values():
            tensor.fill_(0)
    assert (held == 7).all()


def test_what_is_dropped_comes_back() -> None:
    """What is dropped comes back to the next batch of the same size."""
    memory = BatchMemory()
    first = memory.tensors(BatchLayout(SHAPES), batch=True)
    place = first["tokens"].data_ptr()
    del first
    assert memory.tensors(BatchLayout(SHAPES), batch=True)["tokens"].data_ptr() == place


@pytest.mark.parametrize("rows", [1, 4])
def test_sizes_may_change(rows: int) -> None:
    """Sizes may change, and tensors do not overlap."""
    memory = BatchMemory()
    memory.tensors(BatchLayout(SHAPES), batch=True)
    shapes = {"a": ((rows, LARGE), torch.int64), "b": ((rows, LARGE + 1), torch.int32)}
    batch = memory.tensors(BatchLayout(shapes), batch=True)
    batch["a"].fill_(1)
    batch["b"].fill_(2)
    assert (batch["a"] == 1).all()
    assert batch["a"].data_ptr() % 64 == batch["b"].data_ptr() % 64 == 0


class Numbers(Dataset[torch.Tensor]):
    """A dataset whose batches come from `BatchMemory`."""

    def __init__(self) -> None:
        self.memory = BatchMemory()

    def __len__(self) -> int:
        return 40

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        tensors = self.memory.tensors(
            BatchLayout({"x": ((len(indices), LARGE), torch.int32)}), batch=True
        )
        for row, index in zip(tensors["x"], indices, strict=True):
            row.fill_(index)
        return list(tensors["x"])


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_workers_stay(workers: int) -> None:
    """All batches of an epoch can be held at a time."""
    loader = DataLoader(Numbers(), 2, num_workers=workers, collate_fn=torch.stack)
    batches = list(loader)
    for number, batch in enumerate(batches):
        assert (batch[0] == 2 * number).all()
        assert (batch[1] == 2 * number + 1).all()
