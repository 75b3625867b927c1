"""How ranks agree, how they end where they cannot, and which cores they have."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from distcache.errors import DistcacheError, NotReady
from distcache.ranks import job_environment
from distcache.ranks.agreement import on_all_ranks, on_all_ranks_watched, on_rank_0
from distcache.ranks.communicator import Communicator, SerialCommunicator
from distcache.ranks.job_environment import cgroup_limits, share_of_cores, usable_cores
from tests.support.threads import run_ranks


def test_agreeing_within_agreeing_is_impossible() -> None:
    """It would be a collective that some ranks do not take part in."""
    world = SerialCommunicator()
    with pytest.raises(RuntimeError, match="inner"):
        on_all_ranks(world, lambda: on_all_ranks(world, lambda: 1, "inner"), "outer")
    with pytest.raises(RuntimeError, match="inner"):
        on_all_ranks(world, lambda: on_rank_0(world, lambda: 1, int, "inner"), "outer")
    with pytest.raises(RuntimeError, match="inner"):  # in the thread that is watched, too
        on_all_ranks_watched(world, lambda: on_all_ranks(world, lambda: 1, "inner"), "outer")
    assert on_all_ranks(world, lambda: 1, "after it") == 1


def test_all_ranks_have_the_problems_of_all() -> None:
    """All ranks have the problems of all, with the ranks that had them."""

    def work(world: Communicator) -> tuple[tuple[int, ...], str]:
        def fail() -> None:
            if world.rank != 1:
                raise DistcacheError(f"problem {world.rank}")

        with pytest.raises(DistcacheError) as caught:
            on_all_ranks(world, fail, "work")
        return caught.value.failed_ranks, str(caught.value)

    found, _ = run_ranks(3, work)
    assert len(set(found)) == 1
    ranks, text = found[0]
    assert ranks == (0, 2)
    assert "problem 0" in text
    assert "problem 2" in text


def test_a_problem_with_a_name_that_is_no_text() -> None:
    """Reaches all ranks: the name is escaped."""

    def work(world: Communicator) -> str:
        def fail() -> None:
            if world.rank == 0:
                raise NotReady("/data/\udcff.idx: no such file")

        with pytest.raises(NotReady) as caught:
            on_all_ranks(world, fail, "work")
        return str(caught.value)

    assert set(run_ranks(3, work)[0]) == {r"/data/\udcff.idx: no such file"}


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Made-up cgroups; this process is in `job/step` of version 2."""
    monkeypatch.setattr(job_environment, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(job_environment, "MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    (tmp_path / "membership").write_text("0::/job/step\n")
    (tmp_path / "cgroup" / "job" / "step").mkdir(parents=True)
    return tmp_path / "cgroup"


def test_without_a_quota(groups: Path) -> None:
    """The affinity counts."""
    assert usable_cores() == 6
    (groups / "job" / "cpu.max").write_text("max 100000\n")
    assert usable_cores() == 6


@pytest.mark.parametrize(
    ("quota", "expected"), [("50000 100000", 1), ("250000 100000", 2), ("900000 100000", 6)]
)
def test_a_quota_of_an_outer_group(groups: Path, quota: str, expected: int) -> None:
    """Whole cores of it, and at least one."""
    (groups / "job" / "step" / "cpu.max").write_text("max 100000\n")
    (groups / "job" / "cpu.max").write_text(quota + "\n")
    assert usable_cores() == expected
    assert share_of_cores(SerialCommunicator()) == expected


def test_version_1(groups: Path, tmp_path: Path) -> None:
    """The controller has a directory of its own; of -1 is no quota."""
    (tmp_path / "membership").write_text("5:memory:/\n4:cpu,cpuacct:/job\n1:name=systemd:/x\n")
    group = groups / "cpu,cpuacct" / "job"
    group.mkdir(parents=True)
    (group / "cpu.cfs_quota_us").write_text("300000\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    assert usable_cores() == 3
    (group / "cpu.cfs_quota_us").write_text("-1\n")
    assert usable_cores() == 6


def test_a_container_sees_its_own_group_as_the_root(groups: Path, tmp_path: Path) -> None:
    """Its path in the host is not there."""
    (tmp_path / "membership").write_text("0::/../../kubepods/pod7\n")
    (groups / "cpu.max").write_text("200000 100000\n")
    assert usable_cores() == 2
    assert list(cgroup_limits("memory.max")) == []
