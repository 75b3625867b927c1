"""Waiting for a cache: at once when it is ready, in seconds when its builder is gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import distcache
from distcache.cache.readiness import State, Watch, look
from distcache.errors import ConfigError, NotReady
from distcache.ranks import heartbeat
from distcache.ranks.heartbeat import read_beat, write_beat
from distcache.ranks.progress import NullProgress, Stopwatch
from distcache.storage.timeouts import limits
from tests.support import here
from tests.support.caches import workspace_of
from tests.support.processes import clean_environment, start


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def test_ready_at_once(blend_config: dict[str, Any], shared: Path) -> None:
    """Without a look at anything else."""
    path = here.build(blend_config, shared, "c").path
    begin = time.monotonic()
    assert distcache.wait(path).state is State.ready
    assert time.monotonic() - begin < 1
    assert start(["ready", path]).returncode == 0


def test_not_started(shared: Path) -> None:
    """It says so, until the time is over."""
    assert look(shared / "c.h5").state is State.absent
    with pytest.raises(NotReady, match="not started, after 1 s"):
        distcache.wait(shared / "c.h5", timeout=1)
    done = start(["ready", shared / "c.h5", "--json"])
    assert done.returncode == 5
    assert json.loads(done.stdout)["state"] == "not started"
    assert start(["ready", shared / "none" / "c.h5"]).returncode == 5


def test_in_progress(shared: Path) -> None:
    """With phase and percentage, while the builder gives signs."""
    clock = Clock()
    workspace = workspace_of(shared / "c.h5")
    assert workspace.take()
    watch = Watch(shared / "c.h5", clock)
    for part in range(40):
        clock.now += 2
        write_beat(workspace.path, "building", part / 40)
        found = watch.look()
        assert (found.state, found.phase, found.fraction) == (
            State.building,
            "building",
            part / 40,
        )
    progress = Stopwatch(NullProgress())
    progress.phase("reading back", 4)
    progress.advance(1)
    with heartbeat.Heartbeat(workspace.path, progress):
        done = start(["ready", shared / "c.h5"])
    assert done.returncode == 5
    assert "in progress (reading back 25%, process" in done.stdout
    workspace.release()


def test_a_builder_that_has_ended_is_dead_within_seconds(shared: Path) -> None:
    """One that lives, but gives no sign, is only after a minute."""
    for held, limit in ((False, limits().silent), (True, limits().hung)):
        clock = Clock()
        workspace = workspace_of(shared / f"{held}.h5")
        assert workspace.take()
        workspace.prepare("key")
        write_beat(workspace.path, "building", None)
        if not held:
            workspace.release()
        watch = Watch(shared / f"{held}.h5", clock)
        assert watch.look().state is State.building
        while clock.now < limit:
            clock.now = min(clock.now + 5, limit)
            assert watch.look().state is State.building
        clock.now = limit + 1
        assert watch.look().state is State.dead


def test_a_signal_of_readiness_ends_the_wait(blend_config: dict[str, Any], shared: Path) -> None:
    """A signal of readiness ends the wait of a build in another process."""
    config = shared / "c.json"
    config.write_text(json.dumps(blend_config))
    waiting = subprocess.Popen(
        [sys.executable, "-c", f"import distcache; distcache.wait({str(shared / 'c.h5')!r}, 60)"],
        env=clean_environment(),
    )
    try:
        assert start(["build", config, "-o", shared, "--name", "c"]).returncode == 0
        assert waiting.wait(20) == 0
    finally:
        waiting.kill()
        waiting.wait()


def test_a_file_that_is_no_cache(shared: Path) -> None:
    """A file that is no cache is not waited for."""
    (shared / "c.h5").write_text("no cache at all")
    with pytest.raises(ConfigError, match="is no cache"):
        distcache.wait(shared / "c.h5")
    assert start(["ready", shared / "c.h5"]).returncode == 2


def test_hostile_signs(shared: Path) -> None:
    """A pipe, a link or nonsense instead of a sign is no sign."""
    workspace = workspace_of(shared / "c.h5")
    assert workspace.take()
    sign = workspace.path / heartbeat.NAME
    for make in (
        lambda: os.mkfifo(sign),
        lambda: sign.symlink_to("/dev/zero"),
        lambda: sign.write_bytes(b"\xff" * 100_000),
        sign.mkdir,
    ):
        make()
        assert read_beat(workspace.path) is None
        assert Watch(shared / "c.h5").look().state is State.building
        (sign.rmdir if sign.is_dir() else sign.unlink)()


def test_a_cache_that_cannot_be_opened(shared: Path) -> None:
    """A cache that cannot be opened is not waited for either."""
    os.mkfifo(shared / "c.h5")
    with pytest.raises(NotReady, match="cannot be opened"):
        distcache.wait(shared / "c.h5")
    done = start(["ready", shared / "c.h5"])
    assert done.returncode == 5
    assert "cannot be opened" in done.stderr
