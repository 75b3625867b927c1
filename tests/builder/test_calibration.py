"""A machine is measured by small runs of what a build does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from distcache.builder import calibration
from distcache.builder.calibration import calibrate
from distcache.builder.configuration import config_from_mapping
from distcache.builder.prepare import make_plan_together
from distcache.plan.assignment import assign_all, estimate
from distcache.plan.costs import REFERENCE
from distcache.plan.layout import make_layout
from distcache.ranks.communicator import SerialCommunicator
from distcache.ranks.progress import NullProgress


@pytest.mark.parametrize("streams", [1, 2])
def test_every_cost_is_measured(streams: int, tmp_path: Path) -> None:
    """Each takes some time, between a thousandth and a thousand times that of the reference."""
    found = msgspec.structs.asdict(calibrate(tmp_path, streams))
    usual = msgspec.structs.asdict(REFERENCE)
    assert all(1e-3 < found[name] / usual[name] < 1e3 for name in usual if name != "synced")
    assert found["synced"] >= 0  # nothing in memory
    assert not list(tmp_path.iterdir())


def test_a_slow_disk_takes_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing ends after half a second, with at least one chunk."""
    written: list[int] = []

    def write_slowly(_descriptor: int, offset: int, _data: Any) -> None:
        written.append(offset)
        ticks[0] += 0.3

    ticks = [0.0]
    monkeypatch.setattr(calibration.time, "perf_counter", lambda: ticks[0])
    monkeypatch.setattr(calibration, "write_range", write_slowly)
    monkeypatch.setattr(calibration, "read_pieces", lambda *_: [])
    found = calibration._use_files(str(tmp_path))
    assert len(written) == 2
    assert found == pytest.approx([1e9 * 0.6 / (2 * calibration.CHUNK_BYTES), 0, 0])


def test_estimates_follow_the_machine(large_config: dict[str, Any]) -> None:
    """One that takes twice as long for everything is estimated to take twice as long."""
    config = config_from_mapping(large_config)
    plan = make_plan_together(SerialCommunicator(), config, 1, NullProgress())
    layout = make_layout(plan.items)
    twice = type(REFERENCE)(**{k: 2 * v for k, v in msgspec.structs.asdict(REFERENCE).items()})
    for ranks in (1, 4):
        work = assign_all(plan.items, layout, ranks)
        usual = estimate(plan, layout, work, ranks).seconds
        assert estimate(plan, layout, work, ranks, twice).seconds == pytest.approx(2 * usual)
