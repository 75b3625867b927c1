"""What is asked of a scheduler grows with the work, and leaves room."""

from __future__ import annotations

from typing import Any

from distcache.plan.assignment import Estimate, assign, estimate
from distcache.plan.layout import make_layout
from distcache.plan.model import SectionPlan
from distcache.plan.packing import Packed, PackedGroup, PackingRules, group_ranges
from distcache.plan.sizes import Cut, SectionSize
from tests.support import here


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
    packed = Packed(PackingRules(4096, 0, True), groups)
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
