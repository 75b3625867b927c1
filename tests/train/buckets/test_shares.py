"""A budget that is full: training, validation and a second job each get what they need in time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import distcache
from distcache.train.dataset import CachedDataset
from distcache.train.read_ahead import AnnouncedIndex
from tests.support.waiting import wait_until
from tests.train.buckets.reading import status

pytestmark = pytest.mark.slow

BUDGET = 96 << 10


def reads_ahead(dataset: CachedDataset, consumed: int = 0) -> Iterator[Any]:
    """Return the batches of a dataset, read ahead within the budget."""
    sampler = distcache.ResumableSampler(dataset, 4, consumed_samples=consumed)
    return iter(distcache.ReadAhead(sampler, dataset, BUDGET))


def is_settled(root: Path) -> bool:
    """Return whether nothing more comes: two looks show the same."""
    before = status(root)
    after = status(root)
    return before.ahead > 0 and (before.held, before.requests) == (after.held, after.requests)


@pytest.fixture
def training(remote: CachedDataset, local: Path) -> Iterator[Iterator[Any]]:
    """Training that has filled the budget, and pauses."""
    train = reads_ahead(remote)
    for _ in range(20):  # each announces further samples
        remote.__getitems__(next(train))
    wait_until(lambda: status(local).held > 0.8 * BUDGET, "a full budget")
    yield train
    train.close()  # type: ignore[attr-defined]


def test_validation_while_training_pauses(
    training: Iterator[Any], remote: CachedDataset, local: Path
) -> None:
    """Validation gets its share of a budget that is full, and training finds its own afterwards."""
    valid = distcache.open("s3://lake/run/c.h5", local).dataset("valid")
    batches = reads_ahead(valid)
    valid.__getitems__(next(batches))
    wait_until(lambda: is_settled(local), "what validation reads first")
    before = status(local)
    for _ in range(10):
        valid.__getitems__(next(batches))
    for _ in range(10):
        remote.__getitems__(next(training))
    after = status(local)
    assert after.hits - before.hits > 20
    assert after.misses == before.misses
    assert after.held <= BUDGET


def test_a_second_job(training: Iterator[Any], local: Path) -> None:
    """As a debugger that stops one job must not stop the others."""
    other = distcache.open("s3://lake/run/c.h5", local).dataset("train")
    batches = reads_ahead(other, consumed=2000)
    other.__getitems__(next(batches))
    missed = status(local).misses
    for _ in range(100):
        wait_until(lambda: is_settled(local), "what the second job reads next")
        other.__getitems__(next(batches))
    assert status(local).misses == missed
    assert status(local).streams == 2
    assert next(training) is not None


def test_what_was_lent_when_its_owner_ends(
    training: Iterator[Any], remote: CachedDataset, local: Path
) -> None:
    """It is all of the others' again."""
    valid = distcache.open("s3://lake/run/c.h5", local).dataset("valid")
    batches = reads_ahead(valid)
    valid.__getitems__(next(batches))
    batches.close()  # type: ignore[attr-defined]
    wait_until(lambda: status(local).streams == 1, "the end of validation")
    wait_until(lambda: status(local).held > 0.8 * BUDGET, "a full budget")
    missed = status(local).misses
    for _ in range(10):
        remote.__getitems__(next(training))
    assert status(local).misses == missed


def test_a_batch_says_which_reading_it_is(remote: CachedDataset) -> None:
    """Its integers are those of the sampler, and name their stream and number."""
    batches = reads_ahead(remote)
    plain = iter(distcache.ResumableSampler(remote, 4))
    numbers = []
    for _ in range(3):
        batch = next(batches)
        assert batch == next(plain)
        assert all(isinstance(index, AnnouncedIndex) for index in batch)
        numbers += [index.reading[1] for index in batch]
    assert numbers == list(range(12))
    batches.close()  # type: ignore[attr-defined]
