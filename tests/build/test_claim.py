"""Who builds, who waits, and for how long."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from distcache import life
from distcache.build import claim as claims
from distcache.build.claim import claim
from distcache.build.workspace import Workspace
from distcache.progress import Silent
from distcache.ranks.communicator import SerialCommunicator, world_size
from distcache.ranks.cores import share_of_cores
from tests.caches import build_here


class Notes(Silent):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        """Keep the message."""
        self.notes.append(message)


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "POLL", 0.01)


def test_a_builder_without_life_is_left_alone(shared: Path) -> None:
    """After two minutes the job builds in a workspace of its own."""
    other = Workspace(shared / "x.h5")
    other.lock()
    life.show(other.path, "building", 0.25)
    seconds = iter(range(0, 10_000, 30))
    notes = Notes()
    mine = claim(shared / "x.h5", "key", notes, clock=lambda: next(seconds))
    assert mine is not None
    assert mine.private
    assert mine.path != other.path
    assert any("building 25%" in note for note in notes.notes)
    assert "no heartbeat for 120 s" in notes.notes[-1]
    mine.leave()
    assert not mine.path.exists()
    assert other.path.exists()


def test_a_builder_that_dies_is_followed(shared: Path) -> None:
    """Its lock is free, and its workspace is taken as it is."""
    other = Workspace(shared / "x.h5")
    other.lock()
    Path(other.data).write_text("")
    calls = []

    def clock() -> float:
        calls.append(1)
        if len(calls) == 4:
            other.leave()
        return float(len(calls))

    mine = claim(shared / "x.h5", "key", Notes(), clock)
    assert mine is not None
    assert not mine.private
    assert Path(mine.data).exists()


def test_a_builder_that_publishes_is_waited_for(
    blend_config: dict[str, Any], shared: Path, tmp_path: Path
) -> None:
    """The cache that appears is the outcome."""
    built = build_here(blend_config, tmp_path / "elsewhere")
    final = shared / "x.h5"
    other = Workspace(final)
    other.lock()
    calls = []

    def clock() -> float:
        calls.append(1)
        if len(calls) == 3:
            os.link(built.path, final)
        return float(len(calls))

    assert claim(final, built.key, Notes(), clock) is None
    other.remove()


def test_abandoned_private_workspaces_are_swept(blend_config: dict[str, Any], shared: Path) -> None:
    """Once the cache is there; those that live are not touched."""
    build_here(blend_config, shared, "x")
    old, young = (Workspace.of_this_process(shared / "x.h5") for _ in range(2))
    for workspace in (old, young):
        workspace.make()
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
    workspace = Workspace(shared / "x.h5")
    workspace.make()
    assert life.read_sign(workspace.path) is None
    life.show(workspace.path, "building", None)
    first = life.read_sign(workspace.path)
    life.show(workspace.path, "building", None)
    assert life.read_sign(workspace.path) != first
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
    ],
)
def test_what_the_launcher_started(environment: dict[str, str], expected: tuple[str, int]) -> None:
    """The closest launcher's word counts."""
    assert world_size(environment) == expected


def test_one_process_has_its_cores() -> None:
    """All that it may run on, up to eight."""
    cores = len(os.sched_getaffinity(0))
    assert share_of_cores(SerialCommunicator()) == min(cores, 8)
