"""Laws of the pure functions that distribute work and space."""

from __future__ import annotations

import itertools
import re
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distcache.builder.section_slice import edges, row_bounds, windows
from distcache.cache.format import SECTIONS
from distcache.errors import ConfigError, NoSpace
from distcache.kernels import Blender
from distcache.plan.assignment import Estimate, assign, estimate
from distcache.plan.blend_counts import estimate_counts
from distcache.plan.config import OrderName
from distcache.plan.layout import ALIGNMENT, GRAIN, make_layout
from distcache.plan.memory import pivot_of
from distcache.plan.model import BlendPlan, SectionPlan, nbytes_of
from distcache.plan.orders import ORDERS
from distcache.plan.packing import VERSION, Packed, PackedGroup, PackingRules, group_ranges
from distcache.plan.sizes import (
    Cut,
    SectionSize,
    requested_for,
    section_size,
    sequence_range,
    split_matrix,
)
from distcache.ranks.partition import balance, slice_bounds
from tests.support import here

ranks = st.integers(1, 9)
costs = st.lists(st.floats(0, 1e6), max_size=40)


@given(costs, ranks)
def test_balance_gives_every_task_once_and_evenly(tasks: list[float], count: int) -> None:
    """No rank has more than the fair share and the longest task."""
    shares = balance(tasks, count)
    assert sorted(itertools.chain(*shares)) == list(range(len(tasks)))
    loads = [sum(tasks[task] for task in share) for share in shares]
    assert max(loads) <= sum(tasks) / count + max(tasks, default=0) + 1e-6


@given(st.integers(0, 10**12), ranks, st.integers(1, 2**20))
def test_slices_cover_in_steps(size: int, count: int, step: int) -> None:
    """Bounds rise from 0 to the size, all but the last at multiples of the step."""
    bounds = slice_bounds(size, count, step)
    assert (bounds[0], bounds[-1], len(bounds)) == (0, size, count + 1)
    assert bounds == sorted(bounds)
    assert all(bound % step == 0 or bound == size for bound in bounds)
    assert max(b - a for a, b in itertools.pairwise(bounds)) <= size / count + step


bounds_of_bytes = st.lists(st.integers(0, 300), min_size=1, max_size=9).map(
    lambda sizes: list(itertools.accumulate(sizes, initial=0))
)


@given(bounds_of_bytes, st.integers(1, 64))
def test_edges_leave_every_stripe_to_one_rank(bounds: list[int], stripe: int) -> None:
    """After the exchange every byte has one writer, and no stripe has two."""
    writer = np.full(bounds[-1], -1)
    for rank, (begin, end) in enumerate(itertools.pairwise(bounds)):
        writer[begin:end] = rank
    for edge in edges(bounds, stripe):
        assert edge.sender != edge.owner
        assert (writer[edge.begin : edge.end] == edge.sender).all()
        writer[edge.begin : edge.end] = edge.owner
    for begin in range(0, bounds[-1], stripe):
        assert len(set(writer[begin : begin + stripe])) == 1
    for rank in range(len(bounds) - 1):
        own = np.flatnonzero(writer == rank)
        assert own.size == 0 or own[-1] - own[0] + 1 == own.size
        assert own.size == 0 or own[0] % stripe == 0


@given(bounds_of_bytes, st.integers(1, 50))
def test_windows_cover_every_slice(bounds: list[int], step: int) -> None:
    """In steps that are no longer than asked, until all slices are taken."""
    taken: list[list[int]] = [[] for _ in bounds[1:]]
    for chunk in windows(bounds, step):
        for rank, (begin, end) in enumerate(chunk):
            assert 0 <= end - begin <= step
            taken[rank] += range(begin, end)
    assert taken == [list(range(begin, end)) for begin, end in itertools.pairwise(bounds)]


def section(documents: int, samples: int, separate: int | None = None, **kind: bool) -> SectionPlan:
    """Make a section of one pass, or of four whose last is apart."""
    passes = 1 if separate is None else 4
    cut = Cut(16, kind.get("extra_token", True), keep_partial=False)
    size = SectionSize(passes, samples, separate)
    name = f"{documents}/{samples}/{separate}"
    return SectionPlan(name, 0, 0, documents, documents * 100, 1, cut, size)


@given(st.lists(st.integers(0, 500), min_size=1, max_size=8), st.booleans(), st.integers(0, 99))
def test_rows_follow_tokens(tokens: list[int], extra: bool, samples: int) -> None:
    """Row s is with the rank that has token s x L - 1 + extra; the ends take what is beyond."""
    firsts = list(itertools.accumulate(tokens, initial=0))
    plan = section(100, samples, extra_token=extra)
    bounds = row_bounds(firsts[:-1], plan)
    assert (bounds[0], bounds[-1]) == (0, samples + 1)
    assert bounds == sorted(bounds)
    for rank, (begin, end) in enumerate(itertools.pairwise(bounds)):
        for row in range(max(begin, 1), end):
            token = row * 16 - 1 + extra
            assert token >= firsts[rank]
            assert token < firsts[rank + 1] or rank == len(tokens) - 1


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 4))
def test_two_workers_share_the_steps(documents: int, samples: int, workers: int) -> None:
    """Neither has more than half of all, unless the first part is less than half."""
    plan = section(documents, samples)
    pivot = pivot_of(plan, workers)
    assert 0 <= pivot <= plan.first_documents
    if workers == 1:
        assert pivot == 0
    elif pivot:
        upper = plan.first_documents - pivot
        assert abs(2 * upper - plan.documents - plan.shuffled_samples) <= 1


items_lists = st.lists(
    st.one_of(
        st.builds(section, st.integers(0, 3 * 10**7), st.integers(0, 10**7)),
        st.builds(
            lambda size: BlendPlan(str(size), "train", (0.5, 0.5), (), size), st.integers(0, 10**7)
        ),
    ),
    max_size=25,
)


@given(items_lists)
def test_arrays_lie_apart(items: list[SectionPlan | BlendPlan]) -> None:
    """Aligned, none over another, and no grain in two units; those of a dataset follow closely."""
    layout = make_layout(items)
    end = layout.data_begin
    arrays = sorted(itertools.chain(*layout.arrays), key=lambda p: (p.offset, p.nbytes))
    for place in arrays:
        assert place.offset % np.dtype(place.dtype).itemsize == 0
        assert place.offset >= end
        end = place.offset + place.nbytes
    assert layout.tables_begin >= end
    for entry in layout.datasets:
        assert entry.place.offset % ALIGNMENT == 0
        own = [
            place
            for item in layout.units[entry.unit].items
            for place in layout.arrays[item]
            if place.name == entry.place.name
        ]
        assert own[0].offset == entry.place.offset
        assert sum(place.nbytes for place in own) == entry.place.nbytes
        assert entry.place.nbytes == nbytes_of(entry.place.dtype, entry.place.shape)
    assert sorted(index for unit in layout.units for index in unit.items) == list(range(len(items)))
    for before, unit in itertools.pairwise(layout.units):
        assert unit.begin % GRAIN == 0
        assert unit.begin >= before.end
    for unit in layout.units:
        for index in unit.items:
            assert all(unit.begin <= place.offset for place in layout.arrays[index])
            assert all(place.offset + place.nbytes <= unit.end for place in layout.arrays[index])


@given(items_lists, ranks, st.integers(1, 4))
def test_every_unit_is_assigned_once(
    items: list[SectionPlan | BlendPlan], count: int, threads: int
) -> None:
    """Every unit is assigned once to one rank, or to all if it is split."""
    layout = make_layout(items)
    todo = frozenset(range(0, len(layout.units), 2))
    work = assign(items, layout, count, threads, todo=todo)
    split = work.linked
    assert sorted([*split, *work.sliced, *itertools.chain(*work.local)]) == sorted(todo)
    assert all(layout.units[unit].splittable for unit in split)
    assert not split or count > 1
    assert len(work.memory) == count


def test_copied_units_take_no_memory() -> None:
    """Another cache has their arrays."""
    items = [section(100_000_000, 1_000_000)]
    layout = make_layout(items)
    everything = frozenset([0])
    assign(items, layout, 2, 2, 200 << 20, copied=everything)


def test_a_memory_limit_is_kept_or_refused() -> None:
    """Fewer threads, then split sections, then an error that gives the number."""
    items = [section(20_000_000, 1_000_000) for _ in range(8)]
    layout = make_layout(items)
    free = assign(items, layout, 2, threads=4)
    limit = int(max(free.memory) * 0.6)
    tight = assign(items, layout, 2, threads=4, memory_limit=limit)
    assert max(tight.memory) <= limit
    assert tight.threads < 4
    with pytest.raises(NoSpace, match="--memory-limit 1000: a rank needs"):
        assign(items, layout, 2, threads=4, memory_limit=1000)


@given(st.integers(0, 5000), st.integers(1, 4000), st.integers(1, 60), st.booleans())
def test_sizes_hold_what_is_asked(requested: int, tokens: int, length: int, extra: bool) -> None:
    """The passes are the fewest that do, and the smallest request is exact."""
    cut = Cut(length, extra, keep_partial=False)
    size = section_size(requested, tokens, cut)
    assert size is not None
    assert size.samples >= requested
    assert size.passes == 1 or (size.passes - 1) * tokens < requested * length + extra
    smallest = requested_for(requested, tokens, cut)
    found = section_size(smallest, tokens, cut)
    assert found is not None
    assert found.samples >= requested
    if smallest:
        below = section_size(smallest - 1, tokens, cut)
        assert below is not None
        assert below.samples < requested


@given(
    st.lists(st.sampled_from(["0", "1", "98.5", ".5", "969"]), min_size=1, max_size=3).filter(
        lambda parts: any(float(part) for part in parts)
    ),
    st.integers(0, 10**6),
)
def test_splits_cover_all_sequences_once(parts: list[str], sequences: int) -> None:
    """The ranges of the splits that exist follow one another from first to last."""
    found = [book for book in split_matrix(", ".join(parts)) if book is not None]
    ranges = [sequence_range(book, sequences) for book in found]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == sequences
    assert all(before[1] == after[0] for before, after in itertools.pairwise(ranges))


@pytest.mark.parametrize("split", ["", "a,b", "0,0,0", "1,2,3,4", "1.2.3", "\uff19\uff19,1,0"])
def test_split_strings_that_are_none(split: str) -> None:
    """What does not give up to three shares is refused with the string in the message."""
    with pytest.raises(ConfigError, match=re.escape(repr(split))):
        split_matrix(split)


def test_orders_have_names_that_fit_the_file() -> None:
    """A longer one would be cut short without a word, and a name is given in a configuration."""
    room = SECTIONS["order"].itemsize
    assert all(len(name.encode("ascii")) <= room for name in ORDERS)
    assert set(ORDERS) == set(get_args(OrderName))


size_lists = st.lists(st.integers(0, 1000), min_size=1, max_size=40).filter(any)


@given(sizes=size_lists, share=st.floats(0, 1))
def test_counts_add_up(sizes: list[int], share: float) -> None:
    """Counts add up to the step, and none is more than there is."""
    limits = np.array(sizes, np.int64)
    step = int(share * limits.sum())
    taken = estimate_counts(limits / limits.sum(), limits, step)
    assert taken.sum() == step
    assert np.all((taken >= 0) & (taken <= limits))


def test_a_corpus_that_is_exhausted() -> None:
    """It leaves its share to the others, however far that is from their weights."""
    weights, limits = np.array([0.999, 0.001]), np.array([1, 100_000])
    assert estimate_counts(weights, limits, 50_000).tolist() == [1, 49_999]


@pytest.mark.parametrize("sigma", [0.0, 1.5])
@pytest.mark.parametrize("corpora", [2, 30, 800])
def test_a_blend_from_a_guess_becomes_the_true_one(sigma: float, corpora: int) -> None:
    """A blend from a guess becomes the true one within the run-up that ranks give it."""
    weights = np.random.default_rng(corpora).lognormal(0, sigma, corpora)
    weights /= weights.sum()
    true, guessed = Blender.by_weight(weights), Blender.by_weight(weights)
    guessed.resume(estimate_counts(weights, np.full(corpora, 2**62), 200_000))
    guessed.skip(8192)
    true.skip(208_192)
    assert guessed.taken == true.taken


def foresee(fields: dict[str, Any], ranks: int, per_node: int, threads: int = 1) -> Estimate:
    """Foresee a build of a configuration."""
    plan = here.plan(fields)
    layout = make_layout(plan.items)
    return estimate(plan, layout, assign(plan.items, layout, ranks, threads), per_node)


def test_more_ranks_and_threads_take_less_time(large_config: dict[str, Any]) -> None:
    """More ranks and threads take less time as long as there is work for them."""
    long = {**large_config, "samples": {"train": 80_000_000, "valid": 80_000_000, "test": 1000}}
    alone = foresee(long, 1, 1)
    assert foresee(long, 1, 1, threads=2).seconds < alone.seconds
    assert foresee(long, 4, 4).seconds < alone.seconds


def test_more_samples_take_more_time(large_config: dict[str, Any]) -> None:
    """Several epochs of a corpus are several times its work."""
    more = {**large_config, "samples": {"train": 80_000_000, "valid": 5_000_000, "test": 1000}}
    assert foresee(more, 1, 1).seconds > 3 * foresee(large_config, 1, 1).seconds


def test_what_is_asked_for_leaves_room(large_config: dict[str, Any]) -> None:
    """Time for a slower machine, memory for all ranks of a node and then some."""
    huge = {**large_config, "samples": {"train": 30_000_000_000, "valid": 1000, "test": 1000}}
    for ranks, per_node in ((1, 1), (4, 4), (16, 8)):
        found = foresee(huge, ranks, per_node)
        assert found.seconds > 200
        assert found.minutes * 60 > 3 * found.seconds
        assert found.memory_gib << 30 > found.memory * per_node
    assert foresee(large_config, 1, 1).minutes == 10


def packed_section(documents: int, passes: int) -> SectionPlan:
    """Return a packed section of documents of 600 tokens in rows of 4,096, as a plan has it."""
    groups = tuple(
        PackedGroup(begin, end, (end - begin) // 6, end - begin, 600 * (end - begin), 0, 0, 0)
        for begin, end in group_ranges(0, documents)
    )
    packed = Packed(PackingRules(4096, 0, True, VERSION), groups)
    size = SectionSize(passes, passes * packed.rows, None)
    cut = Cut(4096, True, False)
    return SectionPlan("k", 0, 0, documents, 600 * documents, 1, cut, size, "packed", packed=packed)


def test_a_thousand_million_packed_documents() -> None:
    """On 64 ranks: each packs some of the groups, in the memory of one."""
    items = [packed_section(10**9, passes=3)]
    layout = make_layout(items)
    alone, many = (assign(items, layout, ranks) for ranks in (1, 64))
    assert many.sliced == (0,)
    assert max(many.busy) < max(alone.busy) / 40
    assert max(many.memory) < 4 << 30
    assert max(many.busy) < 5e9
