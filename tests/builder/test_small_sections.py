"""Small sections of a unit are built in runs, and whatever is between them alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from distcache.builder.job import BuildOptions, Job
from distcache.builder.reuse import Reusable
from distcache.builder.work import runs_of
from distcache.plan.layout import Unit, make_layout
from distcache.plan.model import BlendPlan, Plan, SectionPlan
from distcache.plan.sizes import Cut, SectionSize
from distcache.ranks.progress import NullProgress, Stopwatch
from tests.support import here

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
