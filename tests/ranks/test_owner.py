"""Who owns a directory of unfinished files, and from when to when its heartbeat goes."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distcache.errors import DistcacheError, NoSpace
from distcache.ranks.heartbeat import read_beat, write_beat
from distcache.ranks.owner import OWNER, Monitor, Owner
from distcache.ranks.progress import NullProgress
from distcache.ranks.workspace import Workspace
from distcache.storage.timeouts import limits
from tests.support import here
from tests.support.corpora import write_lengths
from tests.support.texts import write_shard


def is_owned(directory: Path) -> bool:
    """Return what somebody sees who looks once."""
    monitor = Monitor(directory)
    monitor.look()
    return monitor.is_owned


def test_one_of_several(tmp_path: Path) -> None:
    """Until it is released."""
    first, second = Owner(tmp_path), Owner(tmp_path)
    assert first.take()
    assert first.take()
    assert not second.take()
    first.release()
    assert second.take()


def test_of_many_threads_one(tmp_path: Path) -> None:
    """However close together."""
    owners = [Owner(tmp_path) for _ in range(16)]
    taken: list[bool] = []
    threads = [threading.Thread(target=lambda o=o: taken.append(o.take())) for o in owners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(taken) == 1


@pytest.mark.parametrize("text", [b"", b"elsewhere pid:[1] 17 4711 00ff\n", b"\xff\xff"])
def test_one_that_only_its_heartbeat_tells_of(text: bytes, tmp_path: Path) -> None:
    """One of another machine, or one whose text comes later on a network filesystem."""
    (tmp_path / OWNER).write_bytes(text)
    assert is_owned(tmp_path)
    assert not Owner(tmp_path).take()
    assert Owner(tmp_path).take(silent=True)


def test_a_dead_one_of_this_machine(tmp_path: Path) -> None:
    """It is known at once: there is no such process, or a later one of its number."""
    first = Owner(tmp_path)
    assert first.take()
    words = (tmp_path / OWNER).read_text().split()
    for changed in ({2: "4194400"}, {3: "1"}):
        text = " ".join(changed.get(place, word) for place, word in enumerate(words))
        (tmp_path / OWNER).write_text(text + "\n")
        assert not is_owned(tmp_path)
        assert Owner(tmp_path).take()
        (tmp_path / OWNER).unlink()
    assert not is_owned(tmp_path)


def test_one_that_comes_to_itself(tmp_path: Path) -> None:
    """Sees that another has become it, and leaves that one's file alone."""
    first, second = Owner(tmp_path), Owner(tmp_path)
    assert first.take()
    assert first.is_mine()
    (tmp_path / OWNER).unlink()
    assert second.take()
    assert not first.is_mine()
    first.release()
    assert second.is_mine()
    assert (tmp_path / OWNER).exists()


def test_a_directory_that_goes_meanwhile(tmp_path: Path) -> None:
    """Its owner has published and cleaned up: there is nothing to take."""
    work = tmp_path / "work"
    work.mkdir()
    owner = Owner(work)
    work.rmdir()
    assert not owner.take()


def test_a_pipe_in_its_place(tmp_path: Path) -> None:
    """A pipe in its place is not waited for: it names nobody."""
    os.mkfifo(tmp_path / OWNER)
    assert Owner(tmp_path).take(silent=True)


def test_a_watcher_that_was_stopped(tmp_path: Path) -> None:
    """It does not take the time in which it could not look for silence of the owner."""
    now = [0.0]
    monitor = Monitor(tmp_path, lambda: now[0])
    write_beat(tmp_path, "building", None)
    for now[0] in (0.0, 2.0, 500.0):
        monitor.look()
    assert monitor.silence <= limits().hung
    for now[0] in np.arange(500.0, 600.0, 2.0):
        monitor.look()
    assert monitor.silence > limits().hung


def test_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner that cannot be written leaves no file that would be waited for."""

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", refuse)
        with pytest.raises(NoSpace):
            Owner(tmp_path).take()
    assert Owner(tmp_path).take()


def beats(directory: Path) -> bool:
    """Return whether a new heartbeat comes, within ten seconds."""
    first = read_beat(directory)
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if read_beat(directory) not in (None, first):
            return True
        time.sleep(0.01)
    return False


def noting(monkeypatch: pytest.MonkeyPatch, name: str, found: dict[str, bool]) -> None:
    """Look for a heartbeat whenever a method of a workspace is called."""
    original: Callable[..., Any] = getattr(Workspace, name)

    def called(place: Any, *rest: Any) -> Any:
        found[name] = beats(place.path)
        return original(place, *rest)

    monkeypatch.setattr(Workspace, name, called)


@pytest.mark.parametrize("command", ["build", "ingest", "merge"])
def test_a_job(
    command: str,
    blend_config: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scale_time: Callable[[float], None],
) -> None:
    """Beats while what an earlier one left is removed, and until it has published."""
    scale_time(0.05)
    found: dict[str, bool] = {}
    noting(monkeypatch, "prepare", found)
    noting(monkeypatch, "publish", found)
    if command == "build":
        here.build(blend_config, tmp_path, "c")
    elif command == "ingest":
        path = write_shard(tmp_path / "a.parquet", [[1, 2, 3], [4]])
        here.ingest_tokens([path], tmp_path / "out")
    else:
        write_lengths(tmp_path / "a", np.array([3, 4]))
        here.merge([str(tmp_path / "a")] * 2, tmp_path / "out")
    assert found == {"prepare": True, "publish": True}
    assert sorted(path.name for path in tmp_path.glob(".*")) == []


class TakenOver(NullProgress):
    """A progress under which another process becomes the owner, when a phase begins."""

    def __init__(self, phase: str, directory: Path) -> None:
        self._phase = phase
        self._directory = directory

    def phase(self, name: str, total: float = 0) -> None:
        """Write another's name into the file."""
        if name == self._phase:
            (self._directory / OWNER).write_bytes(b"another\n")


def test_a_build_that_was_taken_over(blend_config: dict[str, Any], shared: Path) -> None:
    """Publishes nothing, and removes nothing: the other one continues."""
    workspace = shared / ".c.h5.building"
    with pytest.raises(DistcacheError, match="taken it over"):
        here.build(blend_config, shared, "c", progress=TakenOver("publishing", workspace))
    assert not (shared / "c.h5").exists()
    assert (workspace / "data").exists()
    assert (workspace / OWNER).read_bytes() == b"another\n"
