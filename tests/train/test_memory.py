"""Memory of batches is used again, and never while somebody holds it."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from distcache.train.batch import LARGE, BatchMemory

SHAPES = {"tokens": ((3, LARGE), torch.int64), "mask": ((3, 5), torch.float32)}


def test_what_is_held_stays() -> None:
    """What is held stays, even if only a part of one tensor is, as an array of NumPy."""
    memory = BatchMemory()
    batch = memory.tensors(SHAPES, batch=True)
    batch["tokens"].fill_(7)
    held = batch["tokens"][0].numpy()
    del batch
    for _ in range(6):
        for tensor in memory.tensors(SHAPES, batch=True).values():
            tensor.fill_(0)
    assert (held == 7).all()


def test_what_is_dropped_comes_back() -> None:
    """What is dropped comes back to the next batch of the same size."""
    memory = BatchMemory()
    first = memory.tensors(SHAPES, batch=True)
    place = first["tokens"].data_ptr()
    del first
    assert memory.tensors(SHAPES, batch=True)["tokens"].data_ptr() == place


@pytest.mark.parametrize("rows", [1, 4])
def test_sizes_may_change(rows: int) -> None:
    """Sizes may change, and tensors do not overlap."""
    memory = BatchMemory()
    memory.tensors(SHAPES, batch=True)
    shapes = {"a": ((rows, LARGE), torch.int64), "b": ((rows, LARGE + 1), torch.int32)}
    batch = memory.tensors(shapes, batch=True)
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
        tensors = self.memory.tensors({"x": ((len(indices), LARGE), torch.int32)}, batch=True)
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
