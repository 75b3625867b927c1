"""Sampling is Megatron-LM's, continues where it stopped, and does not depend on the ranks."""

from __future__ import annotations

import itertools
import json
import pickle
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

import distcache
from distcache.errors import ConfigError, LoaderWarning
from distcache.megatron.sampling import _Epochs
from distcache.train.sampler import ResumableSampler, WholePermutation, draw_permutation
from tests.support import here

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


@pytest.mark.filterwarnings("ignore:.*no batch can be made")
@given(sizes=sizes, extra=st.integers(0, 19))
def test_sequential_is_megatrons(sizes: tuple[int, int, int, int], extra: int) -> None:
    """Sequential is Megatron's on each rank, from any step on."""
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
    """Cyclic is Megatron's on each rank and in each epoch, with and without samples of its own."""
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
    assert len({sampler.consumed_samples for sampler in second}) == 1


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
    """Samplers may be pickled in the middle of an epoch."""
    sampler = ResumableSampler(100, 2, **options)
    next(iter(sampler))
    twin = pickle.loads(pickle.dumps(sampler))
    assert twin.state_dict() == sampler.state_dict()
    assert list(twin) == list(sampler)


@pytest.mark.parametrize("options", ORDERS)
def test_a_state_is_small_and_at_once(options: dict[str, Any]) -> None:
    """However many samples have been served: nothing is drawn for it."""
    total = 10**12 if options["order"] == "sequential" else 10**5
    sampler = ResumableSampler(total, 2, consumed_samples=total - 2, **options)
    state = sampler.state_dict()
    assert len(json.dumps(state)) < 400
    twin = ResumableSampler(total, 2, **options)
    twin.load_state_dict(state)
    assert twin.state_dict() == state


@pytest.mark.parametrize("size", [1, 2, 1000, 100_001])
def test_an_epoch_is_drawn_as_it_is_wanted(size: int) -> None:
    """From any place on, forwards and backwards, the values are torch's own."""
    epochs = _Epochs(size, draw_permutation)
    for number, begin, end in (
        (0, 0, size),
        (1, size // 3, size // 2),
        (1, 0, size // 4),
        (0, 0, 1),
    ):
        assert epochs.values(number, begin, end).tolist() == draw(size, number)[begin:end]


def test_another_torch_draws_for_itself() -> None:
    """The whole permutation, if its draws should ever be others."""
    assert _Epochs(100, WholePermutation).values(5, 20, 60).tolist() == draw(100, 5)[20:60]


def test_a_state_of_another_order_is_refused() -> None:
    """A state of another order is refused where going on would mix orders up, naming each field."""
    cyclic = ResumableSampler(100, 2, order="cyclic")
    list(islice(cyclic, 3))
    state = cyclic.state_dict()
    with pytest.raises(ConfigError, match="order is 'cyclic', expected 'sequential'"):
        ResumableSampler(100, 2).load_state_dict(state)
    for options in ({"order": "cyclic"}, {}):
        with pytest.raises(ConfigError, match="total_samples is 100, expected 99"):
            ResumableSampler(99, 2, **options).load_state_dict({**state, **options})
    sharded = {"order": "cyclic", "data_sharding": True}
    state = ResumableSampler(100, 2, 0, 2, **sharded).state_dict()
    with pytest.raises(ConfigError, match="ranks is 2, expected 1"):
        ResumableSampler(100, 2, 0, 1, **sharded).load_state_dict(state)
    with pytest.raises(ConfigError, match="micro_batch_size is 2, expected 4"):
        ResumableSampler(100, 4, 0, 2, **sharded).load_state_dict(state)


def test_a_state_says_what_it_belongs_to(
    blend_config: dict[str, Any], cache: Path, shared: Path
) -> None:
    """The state of another cache or split is refused; one that does not know is taken."""
    train = distcache.open(cache).dataset("train")
    state = ResumableSampler(train, 4, consumed_samples=8).state_dict()
    assert state["cache_key"] == distcache.open(cache).key
    ResumableSampler(train, 4).load_state_dict(state)
    ResumableSampler(len(train), 4).load_state_dict(state)
    other = here.build({**blend_config, "seed": 1}, shared, "other").path
    with pytest.raises(ConfigError, match="cache_key is"):
        ResumableSampler(distcache.open(other).dataset("train"), 4).load_state_dict(state)
    with pytest.raises(
        ConfigError, match=r"split is 'train', expected 'valid'(.|\n)*total_samples"
    ):
        ResumableSampler(distcache.open(cache).dataset("valid"), 4).load_state_dict(state)


@pytest.mark.parametrize("lacking", ["cache_key", "split", "dataset"])
def test_a_state_that_does_not_say_what_it_belongs_to(cache: Path, lacking: str) -> None:
    """It is taken with a warning: it may be of any dataset of that length."""
    sampler = ResumableSampler(distcache.open(cache).dataset("train"), 4)
    with pytest.warns(distcache.StateWarning, match="does not say which cache"):
        sampler.load_state_dict({**sampler.state_dict(), lacking: None})


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        None,
        [],
        {"order": "cyclic"},
        {"consumed_samples": -1},
        {"consumed_samples": "4"},
        {"consumed_samples": 1e300},
        {"consumed_samples": 101},
        {"version": 99},
        {"total_samples": 0},
        {"epoch_samples": 200},
        {"shuffled_samples": 1},
        {"nothing": 1},
    ],
)
def test_rubbish_is_no_state(wrong: Any) -> None:
    """One sentence says what is wrong, and the sampler stays as it was."""
    sampler = ResumableSampler(100, 2, consumed_samples=6)
    whole = wrong if not wrong or "order" in wrong else {**sampler.state_dict(), **wrong}
    with pytest.raises(ConfigError, match="state") as caught:
        sampler.load_state_dict(whole)
    assert len(caught.value.problems) == 1
    assert sampler.consumed_samples == 6


@pytest.mark.parametrize(
    ("numbers", "options", "message"),
    [
        ((0, 1), {}, "must have samples"),
        (("10", 1), {}, "dataset is '10', expected a number"),
        ((10, 2.0), {}, "micro_batch_size is 2.0, expected a number"),
        ((10, 0), {}, "must be positive"),
        ((10, 1, 2, 2), {}, "data_parallel_rank is 2, of 2"),
        ((10, 1), {"consumed_samples": 11}, "11 of 10 samples are consumed"),
        ((10, 1), {"consumed_samples": -1}, "not be negative"),
        ((10, 6, 0, 2), {"order": "cyclic"}, "do not fill one step of 12"),
        ((10, 1), {"order": "random"}, "expected one of sequential, cyclic"),
        ((2**70, 1), {}, "more than can be counted"),
        ((10, 1), {"order": "cyclic", "consumed_samples": 10 * 2**32}, "more than can be counted"),
    ],
)
def test_impossible_numbers(
    numbers: tuple[int, ...], options: dict[str, Any], message: str
) -> None:
    """Impossible numbers are refused at once."""
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


def test_a_sampler_says_what_it_is(cache: Path) -> None:
    """How far it is, of what, and for which rank."""
    assert repr(ResumableSampler(100, 2, 1, 4, consumed_samples=8)) == (
        "<sequential sampler: 8 of 100 samples, rank 1 of 4>"
    )
    sampler = ResumableSampler(distcache.open(cache).dataset("train"), 2)
    assert "samples of split 'train', rank 0 of 1" in repr(sampler)


def test_a_spent_sampler_says_so() -> None:
    """A second pass would otherwise train on nothing, without a word."""
    sampler = ResumableSampler(8, 4)
    assert len(list(sampler)) == 2
    with pytest.warns(LoaderWarning, match="no batch is left"):
        assert list(sampler) == []


def test_a_sampler_without_a_batch_says_so() -> None:
    """At the first pass as at the second, with the numbers."""
    ended = ResumableSampler(16, 4, 0, 2, consumed_samples=16)
    for sampler in (ResumableSampler(7, 4, 0, 2), ended):
        with pytest.warns(LoaderWarning, match=r"no batch can be made: \d+ samples are left"):
            assert list(sampler) == []


def test_numbers_of_numpy_and_torch() -> None:
    """They are numbers; what a checkpoint holds is often one."""
    plain = ResumableSampler(100, 4, 1, 2, consumed_samples=16)
    numbers: Any = (np.int64(100), np.int32(4), np.uint8(1), torch.tensor(2))
    odd = ResumableSampler(*numbers, consumed_samples=np.int64(16))  # type: ignore[arg-type]
    assert list(odd) == list(plain)
    assert odd.state_dict() == plain.state_dict()
    with pytest.raises(ConfigError, match=r"micro_batch_size is 4\.0, expected a number"):
        ResumableSampler(100, 4.0)  # type: ignore[arg-type]


def test_a_larger_cache_continues_a_smaller_one(blend_config: dict[str, Any], shared: Path) -> None:
    """Where it begins with the same samples, and in the sequential order; no other does."""
    made = {
        (order, samples): distcache.open(
            here.build(
                blend_config
                | ({"pack": True} if order == "packed" else {"shuffle": order})
                | {"samples": {"train": samples, "valid": 10, "test": 0}},
                shared,
                f"{order}-{samples}",
            ).path
        ).dataset("train")
        for order, samples in itertools.product(("megatron", "passes", "packed"), (800, 2400))
    }
    for order in ("passes", "packed"):
        small, large = made[order, 800], made[order, 2400]
        sampler = ResumableSampler(small, 4)
        list(islice(sampler, 50))
        state = json.loads(json.dumps(sampler.state_dict()))
        other = ResumableSampler(large, 4, 1, 2)
        other.load_state_dict(state)
        assert len(other) == (len(large) - 200) // 8
        assert next(iter(other)) == [204, 205, 206, 207]
        for number in (200, 700, 799):
            assert torch.equal(small[number]["tokens"], large[number]["tokens"])
        with pytest.raises(ConfigError, match="cache_key is"):
            ResumableSampler(small, 4).load_state_dict(other.state_dict())
        with pytest.raises(ConfigError, match="cache_key is"):
            ResumableSampler(made["megatron", 2400], 4).load_state_dict(state)
        cyclic = ResumableSampler(small, 4, order="cyclic").state_dict()
        with pytest.raises(ConfigError, match="cache_key is"):
            ResumableSampler(large, 4, order="cyclic").load_state_dict(cyclic)
    state = ResumableSampler(made["megatron", 800], 4).state_dict()
    with pytest.raises(ConfigError, match="cache_key is"):
        ResumableSampler(made["megatron", 2400], 4).load_state_dict(state)
