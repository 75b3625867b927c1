"""What accelerate's `prepare` does to a loader over our sampler, which deals batches to ranks."""

from __future__ import annotations

import warnings

import pytest
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader

from distcache.errors import LoaderWarning
from distcache.train.sampler import ResumableSampler

pytestmark = pytest.mark.once


def loaders(ranks: int, *, split: bool = False) -> list[DataLoader[int]]:
    """Return the prepared loader of each of two processes."""
    data = list(range(64))
    return [
        prepare_data_loader(
            DataLoader(data, batch_sampler=ResumableSampler(64, 4, rank % ranks, ranks)),  # type: ignore[arg-type]
            num_processes=2,
            process_index=rank,
            put_on_device=False,
            split_batches=split,
        )
        for rank in range(2)
    ]


def test_dealt_twice() -> None:
    """Half of the batches would be lost: the sampler warns."""
    for loader in loaders(2):
        with pytest.warns(LoaderWarning, match="BatchSamplerShard distributes the batches"):
            assert len(list(loader)) < 8


def test_dealt_once() -> None:
    """A sampler of one rank, which is what the warning advises: each sample once, no warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", LoaderWarning)
        found = [sample for loader in loaders(1) for batch in loader for sample in batch.tolist()]
    assert sorted(found) == list(range(64))
