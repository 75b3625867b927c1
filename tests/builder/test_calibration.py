"""A machine is measured by small runs of what a build does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from numpy.typing import NDArray

from distcache.builder import calibration
from distcache.builder.calibration import calibrate
from distcache.builder.configuration import config_from_mapping
from distcache.builder.prepare import make_plan_together
from distcache.errors import ConfigError
from distcache.plan.assignment import assign_all, estimate
from distcache.plan.costs import REFERENCE
from distcache.plan.layout import make_layout
from distcache.ranks.communicator import SerialCommunicator
from distcache.ranks.progress import NullProgress
from distcache.storage.files import write_range


@pytest.mark.parametrize("streams", [1, 2])
def test_every_cost_is_measured(streams: int, tmp_path: Path) -> None:
    """Each takes some time, between a thousandth and a thousand times that of the reference."""
    found = msgspec.structs.asdict(calibrate(tmp_path, streams))
    usual = msgspec.structs.asdict(REFERENCE)
    assert all(1e-3 < found[name] / usual[name] < 1e3 for name in usual if name != "synced")
    assert found["synced"] >= 0  # nothing in memory
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("slow", "times"), [(0.0, 1), (60.0, 2)])
def test_slow_files_are_written_once(
    slow: float, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fast ones twice, and all streams together write as much as one does."""
    written: list[int] = []

    def write_and_count(descriptor: int, offset: int, chunk: NDArray[Any]) -> None:
        written.append(chunk.nbytes)
        write_range(descriptor, offset, chunk)

    monkeypatch.setattr(calibration, "SLOW", slow)
    monkeypatch.setattr(calibration, "write_range", write_and_count)
    calibrate(tmp_path, 2)
    assert sum(written) == times * calibration.FILES


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    """It is not made."""
    with pytest.raises(ConfigError, match="is not a directory"):
        calibrate(tmp_path / "none", 1)


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
