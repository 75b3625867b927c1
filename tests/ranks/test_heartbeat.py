"""From when to when the heartbeat of a job goes: others may take over what has none."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distcache.errors import DistcacheError
from distcache.ranks.heartbeat import read_beat
from distcache.ranks.owner import OWNER
from distcache.ranks.progress import NullProgress
from distcache.ranks.workspace import Workspace
from tests.support import here
from tests.support.corpora import write_lengths
from tests.support.texts import write_shard


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
