"""Who owns a directory of unfinished files, where locks do not exclude."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from distcache.ranks.job_environment import NODE_NAME
from distcache.ranks.owner import OWNER, Owner


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


def test_a_file_that_is_being_made(tmp_path: Path, scale_time: Callable[[float], None]) -> None:
    """On a network filesystem its text may come later; it is no dead owner's."""
    scale_time(0.1)
    other = Owner(tmp_path)
    (tmp_path / OWNER).touch()

    def write() -> None:
        time.sleep(0.3)
        (tmp_path / OWNER).write_bytes(other._text)

    writer = threading.Thread(target=write)
    writer.start()
    assert not Owner(tmp_path).take()
    writer.join()


def test_a_dead_one_of_another_machine(
    tmp_path: Path, scale_time: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no heartbeat; a file without text neither."""
    scale_time(0.05)
    monkeypatch.setenv(NODE_NAME, "elsewhere")
    gone = Owner(tmp_path)
    monkeypatch.delenv(NODE_NAME)
    assert gone.take()
    assert Owner(tmp_path).take()
    (tmp_path / OWNER).write_bytes(b"")
    assert Owner(tmp_path).take()


def test_one_that_comes_to_itself(tmp_path: Path) -> None:
    """Sees that another has become it, and leaves that one's file alone."""
    first, second = Owner(tmp_path), Owner(tmp_path)
    assert first.take()
    assert not first.is_another()
    (tmp_path / OWNER).unlink()
    assert second.take()
    assert first.is_another()
    first.release()
    assert not second.is_another()
    assert (tmp_path / OWNER).exists()


def test_a_directory_that_goes_meanwhile(tmp_path: Path) -> None:
    """Its owner has published and cleaned up: there is nothing to take."""
    work = tmp_path / "work"
    work.mkdir()
    owner = Owner(work)
    work.rmdir()
    assert not owner.take()


def test_a_pipe_in_its_place(tmp_path: Path, scale_time: Callable[[float], None]) -> None:
    """A pipe in its place is not waited for: it names nobody."""
    scale_time(0.05)
    os.mkfifo(tmp_path / OWNER)
    assert Owner(tmp_path).take()
