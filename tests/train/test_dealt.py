"""Readers and samplers take the samples of steps from the places to which they were dealt."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader

import distcache
from distcache.cache.deal import Deal, DealtSplit
from distcache.errors import ConfigError
from distcache.ledger.trace import Trace, trace
from distcache.train.sampler import ResumableSampler
from tests.support import here
from tests.support.corpora import mixed_lengths


@pytest.fixture(scope="module")
def traced(corpora: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """The training samples of a blend."""
    return trace(here.build(mixed_lengths(corpora), tmp_path_factory.mktemp("dealt")).path)


def test_readers_take_samples_from_their_dealt_places(traced: Trace) -> None:
    """With the positions that they have in the cache, in workers and after pickling."""
    cache = distcache.open(traced.cache.path)
    plain = cache.dataset("train")
    dealt = cache.dataset("train", deal="64x8x2", position=True)
    positions = DealtSplit(traced, Deal(64, 8, 2), traced.section).positions(np.arange(4100))
    assert not np.array_equal(positions, np.arange(4100))
    for place in (0, 1, 63, 64, 200, 4095, 4096, 4099, -1):
        assert dealt[place]["position"] == positions[place]
        assert np.array_equal(dealt[place]["tokens"], plain[int(positions[place])]["tokens"])
        assert dealt.document_of(place) == plain.document_of(int(positions[place]))
    assert dealt[None]["position"] == -1
    loader = DataLoader(pickle.loads(pickle.dumps(dealt)), batch_size=100, num_workers=2)
    read = np.concatenate([batch["position"].numpy() for batch in loader])
    assert np.array_equal(read, positions)
    arrays = cache.numpy_dataset("train", deal="64x8x2", position=True)
    assert np.array_equal(arrays.batch(range(4100))["position"], positions)


def test_a_run_goes_on_within_a_step_on_other_ranks(traced: Trace) -> None:
    """By its state; with another deal only between steps."""
    cache = distcache.open(traced.cache.path)
    dealt = cache.dataset("train", deal="64x8x2")
    before = ResumableSampler(dealt, 2, 0, 8)
    for _ in range(6):
        state = (next(iter(before)), before.state_dict())[1]
    assert (state["consumed_samples"], state["deal"]) == (96, "64x8x2")
    taken: list[int | None] = []
    for rank in range(4):
        after = ResumableSampler(dealt, 2, rank, 4)
        after.load_state_dict(state)
        taken += [place for batch in after for place in batch]
    assert sorted(place for place in taken if place is not None) == list(range(96, 4096))
    for other in (cache.dataset("train"), cache.dataset("train", deal="128x8x2")):
        sampler = ResumableSampler(other, 2, 0, 8)
        with pytest.raises(ConfigError, match="within a step of the deal"):
            sampler.load_state_dict(state)
        sampler.load_state_dict(state | {"consumed_samples": 128})
    undealt = ResumableSampler(cache.dataset("train"), 2, 0, 8, consumed_samples=96).state_dict()
    with pytest.raises(ConfigError, match="within a step of the deal 64x8x2"):
        before.load_state_dict(undealt)


def test_samplers_of_other_micro_batches_are_refused(traced: Trace) -> None:
    """And cyclic ones, whose samples are not taken in order."""
    dealt = distcache.open(traced.cache.path).dataset("train", deal="64x8x2")
    with pytest.raises(ConfigError, match="for a sequential order"):
        ResumableSampler(dealt, 2, 0, 8, order="cyclic")
    for micro_batch, ranks in ((3, 8), (4, 4), (16, 1), (2, 16), (2, 3)):
        with pytest.raises(ConfigError, match="micro batches of 2 on 8 ranks, or on a number"):
            ResumableSampler(dealt, micro_batch, 0, ranks)
    with pytest.raises(ConfigError, match="begin the deal where a step begins: 64x8x2@3"):
        ResumableSampler(dealt, 2, 0, 8, consumed_samples=3)
    later = distcache.open(traced.cache.path).dataset("train", deal="64x8x2@40")
    with pytest.raises(ConfigError, match="begin the deal where"):
        ResumableSampler(later, 2, 0, 8)
    assert len(ResumableSampler(later, 2, 0, 8, consumed_samples=40))


def test_a_cache_that_continues_another_begins_with_a_step(
    corpora: dict[str, str], tmp_path: Path
) -> None:
    """Of which some samples would else be consumed, and come again."""
    first = here.build(mixed_lengths(corpora), tmp_path).path
    more = {"continue": {"cache": str(first), "samples": 100}}
    path = here.build(mixed_lengths(corpora) | more | {"samples": {"train": 500}}, tmp_path).path
    cache = distcache.open(path)
    with pytest.raises(ConfigError, match="within a step; give 64x4x1@100"):
        cache.dataset("train", deal="64x4x1")
    assert len(cache.dataset("train", deal="64x4x1@100"))
    assert len(cache.dataset("train", deal="50x5x1"))
