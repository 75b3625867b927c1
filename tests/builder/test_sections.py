"""Sections, document by document: their passes, links of shuffles, runs of small ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distcache.builder import document_index
from distcache.builder.document_index import fill_passes
from distcache.builder.job import BuildOptions, Job
from distcache.builder.links import shuffled_slice
from distcache.builder.reuse import Reusable
from distcache.builder.section_slice import LengthTable, draw_bounds
from distcache.builder.work import runs_of
from distcache.corpus import open_idx, write_idx
from distcache.kernels import Mt19937
from distcache.plan.layout import Unit, make_layout
from distcache.plan.model import BlendPlan, Plan, SectionPlan
from distcache.plan.sizes import Cut, SectionSize
from distcache.ranks.progress import NullProgress, Stopwatch
from tests.support import here


@given(st.data(), st.integers(1, 50))
def test_slices_of_epochs(data: st.DataObject, step: int) -> None:
    """Every slice has the documents of its positions, in steps of any size."""
    begin = data.draw(st.integers(0, 39))
    end = data.draw(st.integers(begin + 1, 40))
    first, size = data.draw(st.integers(0, 120)), data.draw(st.integers(0, 120))
    cut = Cut(8, True, False)
    section = SectionPlan("k", 0, begin, end, 0, 1, cut, SectionSize(6, 9, None))
    filled = np.empty(size, np.int32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document_index, "FILL_STEP", step)
        fill_passes(section, filled, first)
    assert filled.tolist() == [begin + at % (end - begin) for at in range(first, first + size)]


def resident(prefix: str) -> int:
    """Return the bytes of a mapped file that are in this process's memory."""
    blocks = Path("/proc/self/smaps").read_text(encoding="utf-8").split("VmFlags:")
    (own,) = [block for block in blocks if f"{prefix}.idx" in block]
    return 1024 * int(own.partition("Rss:")[2].split()[0])


@pytest.mark.parametrize("begin", [0, 3])
def test_lengths_are_looked_up(begin: int, tmp_path: Path, limit: Callable[..., None]) -> None:
    """Also those beyond 16 bits, of a range that is brought into the table in steps."""
    limit("distcache.builder.section_slice", NARROW_STEP=4)
    lengths = np.array([5, 70_000, 0, 65_534, 1, 65_535, 7, 2**31 - 1, 9, 65_536], np.int32)
    write_idx(str(tmp_path / "c"), lengths, "u2")
    table = LengthTable(open_idx(str(tmp_path / "c")), begin, 9)
    chosen = np.array([8, 3, 7, 5, 3, 4, 6], np.int32)
    assert table.look_up(chosen).tolist() == lengths[chosen].tolist()


def test_lengths_of_an_index_are_released(tmp_path: Path) -> None:
    """Neither the table nor look-ups of long sequences leave them in the process's memory."""
    sequences, prefix = 1 << 22, str(tmp_path / "c")
    lengths = np.ones(sequences, np.int32)
    lengths[::1000] = 70_000
    write_idx(prefix, lengths, "u2")
    idx = open_idx(prefix)
    table = LengthTable(idx, 0, sequences)
    assert resident(prefix) <= 2 << 20
    assert table.look_up(np.arange(0, sequences, 1000, dtype=np.int32)).min() == 70_000
    assert resident(prefix) <= 2 << 20


@pytest.mark.parametrize("size", [0, 1, 2, 3, 50, 4000])
def test_it_is_the_shuffle_of_numpy(size: int, limit: Callable[..., None]) -> None:
    """It is the shuffle of NumPy in pieces of any size, and the generator continues behind it."""
    limit("distcache.builder.links", PIECE_STEPS=700)
    generator, numpy = Mt19937(11), np.random.RandomState(11)
    expected = np.arange(size, dtype=np.uint32)
    numpy.shuffle(expected)
    found = shuffled_slice(here.ALONE, size, generator, [0, size])
    assert found.tolist() == expected.tolist()
    assert generator.next32() == numpy.randint(0, 2**32, dtype=np.uint32)


@pytest.mark.parametrize("ranks", [1, 2, 7, 128])
def test_no_rank_has_more_than_twice_the_mean(ranks: int) -> None:
    """Neither of positions nor of draws: low positions are drawn more often than high ones."""
    size = 200_000
    bounds = draw_bounds(size, ranks)
    draws = Mt19937(1).draw(size - 1, size - 1)
    drawn, _ = np.histogram(draws, bounds)
    assert bounds[0] == 0
    assert bounds[-1] == size
    assert drawn.max() < 2.1 * size / ranks
    assert np.diff(bounds).max() < 2.1 * size / ranks
    assert draw_bounds(0, ranks) == [0] * (ranks + 1)


SECTIONS, ITEMS = 6, 8


def section(order: str = "megatron") -> SectionPlan:
    """Return a section of ten documents."""
    return SectionPlan("k", 0, 0, 10, 100, 1, Cut(8, True, False), SectionSize(1, 12, None), order)


def job_of(finished: set[int], reused: set[int], orders: list[str]) -> Job:
    """Return a build of sections and two blends, of which some are finished, and some copied."""
    blends = tuple(BlendPlan("b", split, (1.0,), (), 5) for split in ("train", "valid"))
    plan = Plan("k", {}, {}, (), tuple(map(section, orders)), blends, ())
    return Job(
        here.ALONE,
        BuildOptions(),
        plan,
        make_layout(plan.items),
        Path("cache.h5"),
        dict.fromkeys(reused, Reusable("other.h5", "sections", 0)),
        Stopwatch(NullProgress()),
        {item: {} for item in finished},
    )


@given(
    st.sets(st.integers(0, ITEMS - 1)),
    st.sets(st.integers(0, ITEMS - 1)),
    st.lists(st.sampled_from(["megatron", "passes"]), min_size=SECTIONS, max_size=SECTIONS),
    st.booleans(),
)
def test_runs(finished: set[int], reused: set[int], orders: list[str], large: bool) -> None:
    """All that is not finished, in order; only sections that follow one another are together."""
    job = job_of(finished, reused, orders)
    unit = Unit(tuple(range(ITEMS)), 0, 1, splittable=False, is_large=large)
    runs = list(runs_of(job, unit))
    assert [item for run, _ in runs for item in run] == sorted(set(unit.items) - finished)
    for run, small in runs:
        assert run == list(range(run[0], run[0] + len(run)))
        can_join = [
            item < SECTIONS and orders[item] == "megatron" and item not in reused for item in run
        ]
        assert small == (all(can_join) and not large)
        assert small or len(run) == 1
    together = [run for run, small in runs if small]
    gaps = [after[0] - before[-1] for before, after in itertools.pairwise(together)]
    assert all(gap > 1 for gap in gaps)  # no run is cut without a reason


def test_many_are_cut_into_runs(limit: Callable[..., None]) -> None:
    """The indices of a run are mapped at the same time, which a process can do so often only."""
    limit("distcache.builder.work", MAX_MAPPED_SECTIONS=4)
    job = job_of(set(), set(), ["megatron"] * SECTIONS)
    (unit,) = job.layout.units
    found: list[Any] = list(runs_of(job, unit))
    assert found == [([0, 1, 2, 3], True), ([4, 5], True), ([6], False), ([7], False)]
