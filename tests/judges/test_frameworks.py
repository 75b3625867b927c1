"""What accelerate and Grain make of our samplers and caches."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import grain
import numpy as np
import pytest
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader

import distcache
from distcache.errors import LoaderWarning
from distcache.train.sample_arrays import NumpyDataset
from distcache.train.sampler import ResumableSampler
from tests.support import here

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


BATCH = 8


@pytest.fixture
def dataset(blend_config: dict[str, Any], shared: Path) -> NumpyDataset:
    """The training samples of a blend, with their positions."""
    path = here.build(blend_config, shared, "c").path
    return distcache.open(path).numpy_dataset("train", position=True)


def batches_of(dataset: NumpyDataset, shard: int = 0, shards: int = 1) -> Any:
    """Return Grain's batches of a host, in the cache's order."""
    return grain.MapDataset.source(dataset)[shard::shards].batch(BATCH, drop_remainder=True)


def test_batches_are_the_caches(dataset: NumpyDataset) -> None:
    """Every batch of a map dataset has the samples of the cache, in its order."""
    batches = batches_of(dataset)
    assert len(batches) == len(dataset) // BATCH
    for number in (0, 3, len(batches) - 1):
        expected = dataset.batch(range(number * BATCH, (number + 1) * BATCH))
        found = batches[number]
        assert set(found) == set(expected)
        for name, values in expected.items():
            np.testing.assert_array_equal(found[name], values)


def test_hosts_share_the_samples(dataset: NumpyDataset) -> None:
    """Each sample goes to one host."""
    hosts = [batches_of(dataset, shard, 3) for shard in range(3)]
    seen = np.concatenate([batch["position"] for host in hosts for batch in host])
    assert len(np.unique(seen)) == len(seen) >= len(dataset) - 3 * BATCH


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterator_resumes(dataset: NumpyDataset, workers: int) -> None:
    """Grain's own checkpoint, through JSON, continues with the next batch, from workers, too."""

    def iterator() -> Any:
        iterable = batches_of(dataset).to_iter_dataset()
        if workers:
            iterable = iterable.mp_prefetch(grain.multiprocessing.MultiprocessingOptions(workers))
        return iter(iterable)

    first = iterator()
    for _ in range(5):
        next(first)
    state = json.loads(json.dumps(first.get_state()))
    expected = [next(first)["position"] for _ in range(4)]
    again = iterator()
    again.set_state(state)
    for positions in expected:
        np.testing.assert_array_equal(next(again)["position"], positions)
    np.testing.assert_array_equal(np.concatenate(expected), np.arange(5 * BATCH, 9 * BATCH))


def test_a_data_loader_reads_it(dataset: NumpyDataset) -> None:
    """The older loader, with its sampler, takes it as a source, too."""
    sampler = grain.samplers.IndexSampler(len(dataset), num_epochs=1, shuffle=False, seed=1)
    operations = [grain.transforms.Batch(BATCH, drop_remainder=True)]
    loader = grain.DataLoader(
        data_source=dataset, sampler=sampler, operations=operations, worker_count=0
    )
    iterator = iter(loader)
    found = [next(iterator)["position"] for _ in range(3)]
    np.testing.assert_array_equal(np.concatenate(found), np.arange(3 * BATCH))
    state = iterator.get_state()
    expected = next(iterator)["position"]
    again = iter(loader)
    again.set_state(state)
    np.testing.assert_array_equal(next(again)["position"], expected)
