"""Sampling is Megatron-LM's, goes on where it stopped, and does not depend on the ranks."""

from __future__ import annotations

import pickle
from itertools import islice, pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

from distcache.errors import ConfigError, KeyMismatch
from distcache.train.sampler import ResumableSampler

ORDERS: list[dict[str, Any]] = [
    {"order": "sequential"},
    {"order": "cyclic"},
    {"order": "cyclic", "data_sharding": True},
]


def draw(size: int, seed: int) -> list[int]:
    """Return torch's permutation for a seed."""
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed)).tolist()


def megatron_single(
    total: int, micro: int, rank: int, ranks: int, consumed: int
) -> list[list[int]]:
    """Say what MegatronPretrainingSampler yields: of every full step, a run for each rank."""
    step = micro * ranks
    starts = range(consumed, total - step + 1, step)
    return [list(range(s + rank * micro, s + (rank + 1) * micro)) for s in starts]


def megatron_cyclic(
    total: int, micro: int, rank: int, ranks: int, consumed: int, sharded: bool
) -> list[list[int]]:
    """Say what MegatronPretrainingRandomSampler yields in the epoch that `consumed` is in."""
    step = micro * ranks
    active = total - total % step
    epoch, done = divmod(consumed, active)
    if sharded:
        bucket = total // step * micro
        mine = [rank * bucket + i for i in draw(bucket, epoch)][done // ranks :]
    else:
        mine = draw(total // micro * micro, epoch)[done:active][rank::ranks]
    return [mine[i : i + micro] for i in range(0, len(mine) - micro + 1, micro)]


sizes = st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 30), st.integers(0, 9))


@given(sizes=sizes, extra=st.integers(0, 19))
def test_sequential_is_megatrons(sizes: tuple[int, int, int, int], extra: int) -> None:
    """Of each rank, from any step on."""
    micro, ranks, steps, done = sizes
    total = steps * micro * ranks + extra % (micro * ranks)
    consumed = min(done, steps) * micro * ranks
    for rank in range(ranks):
        sampler = ResumableSampler(total, micro, rank, ranks, consumed_samples=consumed)
        count = len(sampler)
        found = list(sampler)
        assert found == megatron_single(total, micro, rank, ranks, consumed)
        assert len(found) == count


@given(sizes=sizes, extra=st.integers(0, 19), sharded=st.booleans())
def test_cyclic_is_megatrons(sizes: tuple[int, int, int, int], extra: int, sharded: bool) -> None:
    """Of each rank and epoch, with and without samples of its own."""
    micro, ranks, steps, done = sizes
    total = steps * micro * ranks + extra % (micro * ranks)
    consumed = done * micro * ranks
    for rank in range(ranks):
        sampler = ResumableSampler(
            total,
            micro,
            rank,
            ranks,
            consumed_samples=consumed,
            order="cyclic",
            data_sharding=sharded,
        )
        count = len(sampler)
        found = list(sampler)
        assert found == megatron_cyclic(total, micro, rank, ranks, consumed, sharded)
        assert len(found) == count
        again = list(sampler)
        following = sampler.consumed_samples - len(again) * micro * ranks
        assert again == megatron_cyclic(total, micro, rank, ranks, following, sharded)


def served(samplers: list[ResumableSampler], steps: int) -> list[set[int]]:
    """Return the samples that all ranks together get in each of some steps, over epochs."""
    found = []
    iterators = [iter(sampler) for sampler in samplers]
    while len(found) < steps:
        batches = [next(iterator, None) for iterator in iterators]
        if batches[0] is None:
            assert not any(batches)
            iterators = [iter(sampler) for sampler in samplers]
            continue
        found.append({i for batch in batches if batch for i in batch})
    return found


def group(total: int, micro: int, ranks: int, **options: Any) -> list[ResumableSampler]:
    """Return the samplers of all ranks."""
    return [ResumableSampler(total, micro, rank, ranks, **options) for rank in range(ranks)]


@pytest.mark.parametrize("options", ORDERS[:2])
@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4), (3, 1), (1, 6), (4, 6)])
def test_the_global_order_outlives_another_number_of_ranks(
    options: dict[str, Any], before: int, after: int
) -> None:
    """Steps of equal size would have had the same samples, in every epoch."""
    total, micro = 24 * 20 + 7, 2
    reference = ResumableSampler(total, micro, 0, before, **options)
    first = group(total, micro, before, **options)
    served(first, 7 if options["order"] == "sequential" else 150)
    state = first[0].state_dict()
    assert all(sampler.state_dict() == state for sampler in first)
    second = group(total, micro, after, **options)
    for sampler in second:
        sampler.load_state_dict(state)
    position = state["consumed_samples"]
    for found in served(second, 12):
        expected = reference._order.ids(position, position + micro * after).tolist()
        assert found == set(expected)
        position += micro * after
    assert {sampler.order_digest() for sampler in second} == {second[0].order_digest()}


@pytest.mark.parametrize("options", ORDERS)
def test_no_sample_is_served_twice_in_an_epoch(options: dict[str, Any]) -> None:
    """And in a sequential order none is left out but for the last step's rest."""
    samplers = group(1003, 4, 5, **options)
    steps = [batch for sampler in samplers for batch in sampler]
    ids = [i for batch in steps for i in batch]
    assert len(ids) == len(set(ids)) == 1000


def test_the_last_step_may_be_kept() -> None:
    """Filled up with None, so that every rank has as many batches."""
    samplers = group(11, 2, 3, drop_last=False)
    assert [len(sampler) for sampler in samplers] == [2, 2, 2]
    lists = [list(sampler) for sampler in samplers]
    assert lists == [[[0, 1], [6, 7]], [[2, 3], [8, 9]], [[4, 5], [10, None]]]
    lists = [list(sampler) for sampler in group(8, 2, 3, drop_last=False)]
    assert lists == [[[0, 1], [6, 7]], [[2, 3], [None, None]], [[4, 5], [None, None]]]


@pytest.mark.parametrize("options", ORDERS)
def test_samplers_may_be_pickled(options: dict[str, Any]) -> None:
    """In the middle of an epoch, with the digest of what was served."""
    sampler = ResumableSampler(100, 2, **options)
    next(iter(sampler))
    twin = pickle.loads(pickle.dumps(sampler))
    assert twin.order_digest() == sampler.order_digest()
    assert list(twin) == list(sampler)


@pytest.mark.parametrize("options", ORDERS)
def test_the_digest_is_that_of_what_was_served(options: dict[str, Any]) -> None:
    """The same whenever it is asked for, and another one for another order."""
    often, once = (ResumableSampler(5000, 3, 1, 2, **options) for _ in range(2))
    digests = {often.order_digest()}
    for a, b in islice(zip(often, once, strict=True), 400):
        assert a == b
        digests.add(often.order_digest())
    assert len(digests) == 401
    assert once.order_digest() == often.order_digest()


def test_a_state_of_another_order_is_refused() -> None:
    """Where going on would mix orders up."""
    cyclic = ResumableSampler(100, 2, order="cyclic")
    list(islice(cyclic, 3))
    state = cyclic.state_dict()
    with pytest.raises(ConfigError, match="order is sequential, the state's is cyclic"):
        ResumableSampler(100, 2).load_state_dict(state)
    with pytest.raises(ConfigError, match="has 99 samples"):
        ResumableSampler(99, 2, order="cyclic").load_state_dict(state)
    sharded = ResumableSampler(100, 2, 0, 2, order="cyclic", data_sharding=True)
    with pytest.raises(ConfigError, match="depends on the number of ranks"):
        ResumableSampler(100, 2, 0, 1, order="cyclic", data_sharding=True).load_state_dict(
            sharded.state_dict()
        )
    with pytest.raises(KeyMismatch, match="digest"):
        ResumableSampler(100, 2, order="cyclic").load_state_dict({**state, "order_digest": "00"})
    longer = ResumableSampler(200, 2)
    longer.load_state_dict(ResumableSampler(100, 2, consumed_samples=40).state_dict())
    assert next(iter(longer)) == [40, 41]


@pytest.mark.parametrize(
    ("numbers", "options", "message"),
    [
        ((0, 1), {}, "total_samples must be positive"),
        ((10, 0), {}, "must be positive"),
        ((10, 1, 2, 2), {}, "data_parallel_rank is 2, of 2"),
        ((10, 1), {"consumed_samples": 11}, "11 of 10 samples are consumed"),
        ((10, 1), {"consumed_samples": -1}, "not negative"),
        ((10, 6, 0, 2), {"order": "cyclic"}, "do not fill one step of 12"),
        ((10, 1), {"order": "random"}, "expected one of sequential, cyclic"),
    ],
)
def test_impossible_numbers(
    numbers: tuple[int, ...], options: dict[str, Any], message: str
) -> None:
    """Are refused at once."""
    with pytest.raises(ConfigError, match=message):
        ResumableSampler(*numbers, **options)


class Numbers(Dataset[int]):
    """The numbers themselves."""

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:'set_vital'")
@pytest.mark.parametrize("options", ORDERS)
@pytest.mark.parametrize("workers", [0, 2])
def test_torchdatas_loader_resumes(options: dict[str, Any], workers: int) -> None:
    """At the batch that comes next, also where workers have read ahead."""

    def loader() -> StatefulDataLoader:
        sampler = ResumableSampler(300, 3, 1, 2, **options)
        return StatefulDataLoader(Numbers(), batch_sampler=sampler, num_workers=workers)

    whole = [batch.tolist() for batch in loader()]
    first = loader()
    iterator = iter(first)
    begun = [next(iterator).tolist() for _ in range(17)]
    state = first.state_dict()
    del iterator
    second = loader()
    second.load_state_dict(state)
    rest = [batch.tolist() for batch in second]
    assert begun + rest == whole
    assert len(whole) == 50
    assert all(a != b for a, b in pairwise(whole))
