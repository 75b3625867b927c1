"""Who builds, who waits, and for how long."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distcache.builder.prepare import is_finished
from distcache.ranks import claim as claims
from distcache.ranks.claim import claim
from distcache.ranks.communicator import SerialCommunicator
from distcache.ranks.cores import share_of_cores
from distcache.ranks.heartbeat import read_beat, write_beat
from distcache.ranks.job_environment import world_size
from distcache.ranks.progress import NullProgress
from distcache.ranks.workspace import Workspace
from tests.support.caches import build_here, workspace_of


class Notes(NullProgress):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        """Keep the message."""
        self.notes.append(message)


def claim_cache(
    final: Path, key: str, notes: Notes, clock: Callable[[], float] = time.monotonic
) -> Workspace | None:
    """Claim the build of a cache."""
    return claim(workspace_of(final), lambda: is_finished(final, key), str(final), notes, clock)


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "CLAIM_POLL", 0.01)


def test_a_builder_without_life_is_left_alone(shared: Path) -> None:
    """After two minutes the job builds in a workspace of its own."""
    other = workspace_of(shared / "x.h5")
    other.lock()
    write_beat(other.path, "building", 0.25)
    seconds = iter(range(0, 10_000, 30))
    notes = Notes()
    mine = claim_cache(shared / "x.h5", "key", notes, clock=lambda: next(seconds))
    assert mine is not None
    assert mine.private
    assert mine.path != other.path
    assert any("building 25%" in note for note in notes.notes)
    assert "no heartbeat for 120 s" in notes.notes[-1]
    mine.release()
    assert not mine.path.exists()
    assert other.path.exists()


def test_a_builder_that_dies_is_followed(shared: Path) -> None:
    """Its lock is free, and its workspace is taken as it is."""
    other = workspace_of(shared / "x.h5")
    other.lock()
    (other.path / "data").write_text("")
    calls = []

    def clock() -> float:
        calls.append(1)
        if len(calls) == 4:
            other.release()
        return float(len(calls))

    mine = claim_cache(shared / "x.h5", "key", Notes(), clock)
    assert mine is not None
    assert not mine.private
    assert (mine.path / "data").exists()


def test_a_builder_that_publishes_is_waited_for(
    blend_config: dict[str, Any], shared: Path, tmp_path: Path
) -> None:
    """The cache that appears is the outcome."""
    built = build_here(blend_config, tmp_path / "elsewhere")
    final = shared / "x.h5"
    other = workspace_of(final)
    other.lock()
    calls = []

    def clock() -> float:
        calls.append(1)
        if len(calls) == 3:
            os.link(built.path, final)
        return float(len(calls))

    assert claim_cache(final, built.key, Notes(), clock) is None
    other.remove()


def test_abandoned_private_workspaces_are_swept(blend_config: dict[str, Any], shared: Path) -> None:
    """Once the cache exists; those that live are not touched."""
    build_here(blend_config, shared, "x")
    old, young = (workspace_of(shared / "x.h5").as_private() for _ in range(2))
    hours_ago = time.time() - 7200
    foreign = shared / ".x.h5.building-mybackup"
    foreign.mkdir()
    for path in (old.path, foreign):
        os.utime(path, (hours_ago, hours_ago))
    assert build_here(blend_config, shared, "x").reused
    assert not old.path.exists()
    assert young.path.exists()
    assert foreign.exists()


def test_signs_of_life_differ(shared: Path) -> None:
    """So that a waiting job needs no common clock."""
    workspace = workspace_of(shared / "x.h5")
    workspace.make()
    assert read_beat(workspace.path) is None
    write_beat(workspace.path, "building", None)
    first = read_beat(workspace.path)
    write_beat(workspace.path, "building", None)
    assert read_beat(workspace.path) != first
    assert first is not None
    assert first.process == os.getpid()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ("", 1)),
        ({"SLURM_STEP_NUM_TASKS": "8"}, ("SLURM_STEP_NUM_TASKS", 8)),
        ({"SLURM_NTASKS": "8"}, ("", 1)),
        ({"SLURM_STEP_NUM_TASKS": "8", "PMI_SIZE": "4"}, ("PMI_SIZE", 4)),
        ({"OMPI_COMM_WORLD_SIZE": "2", "SLURM_STEP_NUM_TASKS": "8"}, ("OMPI_COMM_WORLD_SIZE", 2)),
        ({"SLURM_STEP_NUM_TASKS": "x"}, ("", 1)),
        ({"SLURM_STEP_NUM_TASKS": "8", "DISTCACHE_ALONE": "1"}, ("", 1)),
        ({"SLURM_STEP_NUM_TASKS": "8", "DISTCACHE_ALONE": "0"}, ("SLURM_STEP_NUM_TASKS", 8)),
    ],
)
def test_what_the_launcher_started(environment: dict[str, str], expected: tuple[str, int]) -> None:
    """The closest launcher's word counts."""
    assert world_size(environment) == expected


def test_one_process_has_its_cores() -> None:
    """All that it may run on, up to eight."""
    cores = len(os.sched_getaffinity(0))
    assert share_of_cores(SerialCommunicator()) == min(cores, 8)
