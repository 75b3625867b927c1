"""What is asked of a scheduler grows with the work, and leaves room."""

from __future__ import annotations

from typing import Any

from distcache.builder.configuration import config_from_mapping
from distcache.builder.prepare import make_plan_together
from distcache.plan.assignment import Estimate, assign_all, estimate
from distcache.plan.layout import make_layout
from distcache.ranks.communicator import SerialCommunicator
from distcache.ranks.progress import NullProgress


def foresee(fields: dict[str, Any], ranks: int, per_node: int, threads: int = 1) -> Estimate:
    """Foresee a build of a configuration."""
    plan = make_plan_together(SerialCommunicator(), config_from_mapping(fields), 1, NullProgress())
    layout = make_layout(plan.items)
    return estimate(plan, layout, assign_all(plan.items, layout, ranks, threads), per_node)


def test_more_ranks_and_threads_take_less_time(large_config: dict[str, Any]) -> None:
    """More ranks and threads take less time as long as there is work for them."""
    alone = foresee(large_config, 1, 1)
    assert foresee(large_config, 1, 1, threads=2).seconds < alone.seconds
    assert foresee(large_config, 4, 4).seconds < alone.seconds


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
