"""Who builds, who waits, and for how long."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distcache.builder.prepare import is_finished
from distcache.errors import DistcacheError
from distcache.ranks.communicator import SerialCommunicator
from distcache.ranks.heartbeat import read_beat, write_beat
from distcache.ranks.job_environment import share_of_cores, world_size
from distcache.ranks.owner import OWNER
from distcache.ranks.progress import NullProgress
from distcache.ranks.workspace import claim
from distcache.storage.timeouts import limits
from tests.support import here
from tests.support.caches import workspace_of


class Notes(NullProgress):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        """Keep the message."""
        self.notes.append(message)


def claim_cache(
    final: Path, key: str, notes: Notes, clock: Callable[[], float] = time.monotonic
) -> bool:
    """Claim the build of a cache."""
    return claim(
        workspace_of(final), lambda: is_finished(final, key), str(final), notes, key, clock
    )


@pytest.fixture(autouse=True)
def _fast(limit: Callable[..., None]) -> None:
    limit("distcache.ranks.workspace", CLAIM_POLL=0.01)


def test_a_builder_that_hangs_is_left_alone(shared: Path) -> None:
    """Its process lives: after ten minutes of silence the other job says what to do."""
    other = workspace_of(shared / "x.h5")
    assert other.take()
    write_beat(other.path, "building", 0.25)
    seconds = iter(range(0, 10_000, 30))
    notes = Notes()
    with pytest.raises(DistcacheError, match="shown no heartbeat for 600 s; end it, or choose"):
        claim_cache(shared / "x.h5", "key", notes, clock=lambda: next(seconds))
    assert any("building 25%" in note for note in notes.notes)
    assert other.is_mine()


def test_a_builder_that_dies_is_followed(shared: Path) -> None:
    """It owns nothing any more, and its workspace is taken as it is."""
    other = workspace_of(shared / "x.h5")
    assert other.take()
    (other.path / "data").write_text("")
    calls = []

    def clock() -> float:
        calls.append(1)
        if len(calls) == 4:
            other.release()
        return float(len(calls))

    assert claim_cache(shared / "x.h5", "key", Notes(), clock)
    assert (other.path / "data").exists()


def test_a_dead_builder_of_another_machine_is_followed(shared: Path) -> None:
    """After a minute without a heartbeat; one that comes to life again is waited for."""
    other = workspace_of(shared / "x.h5")
    other.make()
    (other.path / OWNER).write_text("elsewhere pid:[1] 17 4711 00ff\n")
    write_beat(other.path, "building", 0.25)
    now = [0.0]

    def clock() -> float:
        now[0] += 5
        if now[0] == 50:
            write_beat(other.path, "building", 0.5)
        return now[0]

    assert claim_cache(shared / "x.h5", "key", Notes(), clock)
    assert 110 <= now[0] <= 150


def test_a_builder_of_something_else_is_never_taken_over(shared: Path) -> None:
    """One that comes to life again would write into the files of its successor."""
    other = workspace_of(shared / "x.h5")
    assert other.take()
    other.prepare("something-else 4096")
    (other.path / OWNER).write_text("elsewhere pid:[1] 17 4711 00ff\n")
    now = [0.0]

    def clock() -> float:
        now[0] += 5
        return now[0]

    with pytest.raises(DistcacheError, match="has shown no heartbeat for"):
        claim_cache(shared / "x.h5", "key", Notes(), clock)
    assert now[0] > limits().abandoned
    assert (other.path / OWNER).read_text().startswith("elsewhere")


def test_a_builder_that_publishes_is_waited_for(
    blend_config: dict[str, Any], shared: Path, tmp_path: Path
) -> None:
    """The cache that appears is the outcome."""
    built = here.build(blend_config, tmp_path / "elsewhere")
    final = shared / "x.h5"
    other = workspace_of(final)
    assert other.take()
    calls = []

    def clock() -> float:
        calls.append(1)
        if len(calls) == 3:
            os.link(built.path, final)
        return float(len(calls))

    assert not claim_cache(final, built.key, Notes(), clock)
    other.remove()


def test_what_a_killed_publication_left_is_swept(
    blend_config: dict[str, Any], shared: Path
) -> None:
    """Once the cache exists; what is somebody's own stays."""
    here.build(blend_config, shared, "x")
    left = workspace_of(shared / "x.h5")
    assert left.take()
    left.prepare("key")
    left.release()
    backup = shared / ".x.h5.building-mybackup"
    backup.mkdir()
    assert here.build(blend_config, shared, "x").reused
    assert not left.path.exists()
    assert backup.exists()


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
