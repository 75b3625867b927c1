"""A deal exchanges samples within steps, so that ranks and micro batches have equal work."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import distcache
from distcache.cache.deal import WORK, Deal, DealtSplit
from distcache.errors import ConfigError
from distcache.kernels import deal_steps
from distcache.ledger.trace import Trace, trace
from tests.orders.orders import ORDERS, build_numbered
from tests.support import here
from tests.support.corpora import mixed_lengths

SHAPES = ["64x8x2", "64x4x1", "96x3x4@7", "4000x8x5", "1x1x1", "30x30x1"]


def squares_of(traced: Trace) -> NDArray[np.float64]:
    """Return the work of each sample of a split that has no padding, by a trace of its parts."""
    found = traced.samples(np.arange(len(traced)))
    inputs = (found.ends - found.begins - found.label_only).astype(np.float64)
    sums = np.concatenate([[0], np.cumsum(inputs**2)])
    return np.diff(sums[found.bounds])


def level(work: NDArray[np.float64], bins: int) -> list[list[int]]:
    """Give items to bins in rounds, slowly: the heaviest of a round to the lightest bin."""
    order = sorted(range(len(work)), key=lambda i: (-work[i], i))
    found: list[list[int]] = [[] for _ in range(bins)]
    loads = [0.0] * bins
    for begin in range(0, len(order), bins):
        free = sorted(range(bins), key=lambda bin_: (loads[bin_], bin_))
        for item, bin_ in zip(order[begin : begin + bins], free, strict=True):
            found[bin_].append(item)
            loads[bin_] += work[item]
    return found


def heaviest(groups: NDArray[np.float64], ranks: int) -> tuple[float, float]:
    """Return the work of the heaviest rank, and the sum of that of each micro batch."""
    table = groups.reshape(-1, ranks)
    return float(table.sum(axis=0).max()), float(table.max(axis=1).sum())


def slow_deal(work: NDArray[np.float64], ranks: int, micro: int) -> list[int]:
    """Deal a step as the kernel does."""
    members = level(work, len(work) // micro)
    sums = np.array([sum(work[item] for item in own) for own in members])
    of_ranks = level(sums, ranks)
    order = [of_ranks[rank][turn] for turn in range(len(sums) // ranks) for rank in range(ranks)]
    before, after = (
        heaviest(work.reshape(-1, micro).sum(axis=1), ranks),
        heaviest(sums[order], ranks),
    )
    if after == before or after[0] > before[0] or after[1] > before[1]:
        return list(range(len(work)))
    return [item for group in order for item in members[group]]


@pytest.fixture(scope="module")
def traced(corpora: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """The training samples of a blend."""
    return trace(here.build(mixed_lengths(corpora), tmp_path_factory.mktemp("dealt")).path)


@pytest.mark.parametrize("case", [name for name, order in ORDERS.items() if order.packs])
def test_padding_belongs_to_the_last_document(case: str, tmp_path: Path) -> None:
    """As in the bounds of documents, by which attention computes."""
    path = build_numbered(tmp_path, case)
    found = trace(path)
    dealt = DealtSplit(found, Deal(10, 5, 1), found.section)
    _, work = dealt.deal_steps(0, dealt.steps)
    dataset = distcache.open(path).numpy_dataset("train", inter_document_masking=True)
    bounds = dataset.batch(range(10 * dealt.steps))["cu_seqlens"]
    squares = (np.diff(bounds).astype(np.float64) ** 2).sum(axis=1)
    assert work[:, WORK.index("total")].tolist() == squares.reshape(-1, 10).sum(axis=1).tolist()


@pytest.mark.parametrize("text", SHAPES)
def test_steps_are_dealt_in_rounds(traced: Trace, text: str) -> None:
    """In all steps; what is before the first, or no whole one, keeps its order."""
    deal = Deal.parse(text)
    assert str(deal) == text
    squares = squares_of(traced)
    expected = np.arange(len(traced))
    for begin in range(deal.begin, len(traced) - deal.batch + 1, deal.batch):
        step = slice(begin, begin + deal.batch)
        expected[step] = begin + np.array(slow_deal(squares[step], deal.ranks, deal.micro_batch))
    dealt = DealtSplit(traced, deal, traced.section)
    assert np.array_equal(dealt.positions(np.arange(len(traced))), expected)
    chosen = np.random.default_rng(1).permutation(len(traced))
    assert np.array_equal(dealt.positions(chosen), expected[chosen])
    assert np.array_equal(dealt.places(expected[chosen]), chosen)


@settings(max_examples=60, deadline=None)
@given(
    ranks=st.integers(1, 9),
    micro=st.integers(1, 5),
    turns=st.integers(1, 7),
    begin=st.integers(0, 200),
)
def test_steps_keep_their_samples_and_are_never_heavier(
    traced: Trace, ranks: int, micro: int, turns: int, begin: int
) -> None:
    """And no rank waits longer than before, at the end of the step or in a micro batch."""
    deal = Deal(ranks * micro * turns, ranks, micro, begin)
    dealt = DealtSplit(traced, deal, traced.section)
    within, work = dealt.deal_steps(0, dealt.steps)
    assert np.array_equal(np.sort(within, axis=1), np.tile(np.arange(deal.batch), (dealt.steps, 1)))
    squares = squares_of(traced)[begin : begin + dealt.steps * deal.batch].reshape(within.shape)
    after = np.take_along_axis(squares, within.astype(np.int64), axis=1)
    for found, step, whole in zip(after, squares, work, strict=True):
        new, old = (heaviest(s.reshape(-1, micro).sum(axis=1), ranks) for s in (found, step))
        assert new[0] <= old[0]
        assert new[1] <= old[1]
        assert whole.tolist() == [step.sum(), old[0], new[0], old[1], new[1]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected BATCHxRANKSxMICRO"),
        ("64", "expected BATCHxRANKSxMICRO"),
        ("64x-4x1", "expected BATCHxRANKSxMICRO"),
        ("64x4x1@", "expected BATCHxRANKSxMICRO"),
        ("64x5x1", "does not have whole micro batches of 1 for 5 ranks"),
        ("64x0x1", "does not have whole micro batches"),
        ("0x1x1", "does not have whole micro batches"),
        ("999999999x999999999x999999999", "does not have whole micro batches"),
    ],
)
def test_what_is_no_deal_is_refused(text: str, message: str) -> None:
    """With what is expected."""
    with pytest.raises(ConfigError, match=message):
        Deal.parse(text)


def test_splits_that_have_no_step_are_refused(traced: Trace) -> None:
    """Nothing would be dealt, without a word."""
    for deal in (Deal(4101, 1, 1), Deal(64, 1, 1, 4090), Deal(64, 1, 1, 5000)):
        with pytest.raises(ConfigError, match="a step has"):
            DealtSplit(traced, deal, traced.section)


def test_arrays_that_are_no_whole_steps_are_refused() -> None:
    """By the kernel."""
    members, samples, places = np.zeros(6, np.int16), np.zeros(6, np.int64), np.zeros(6, np.uint32)
    for batch, steps in ((4, 1), (6, 2)):
        with pytest.raises(IndexError, match="whole steps"):
            deal_steps([None], members, samples, 8, batch, 1, 1, places, np.empty((steps, 5)))
    with pytest.raises(ValueError, match="whole micro batches"):
        deal_steps([None], members, samples, 8, 6, 4, 1, places, np.empty((1, 5)))
