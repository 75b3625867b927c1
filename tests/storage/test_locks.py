"""Directories of unfinished files, which others could exchange."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from distcache.ranks.workspace import discard_empty, empty_directory
from distcache.storage.locks import LOCK, try_lock


def test_emptying_a_directory(tmp_path: Path) -> None:
    """Files, links and directories go; what links lead to stays, and so do names to keep."""
    (tmp_path / "kept").write_text("")
    work = tmp_path / "work"
    (work / "inner" / "more").mkdir(parents=True)
    (work / "file").write_text("")
    (work / "mine").write_text("")
    (work / "link").symlink_to(tmp_path / "kept")
    (work / "loop").symlink_to(tmp_path)
    empty_directory(work, ["mine"])
    assert os.listdir(work) == ["mine"]
    assert (tmp_path / "kept").exists()


@pytest.mark.parametrize("link", [True, False])
def test_a_directory_that_a_colleague_has_exchanged(link: bool, tmp_path: Path) -> None:
    """For a link, or for another directory of this user: nothing in it is removed."""
    work, other = tmp_path / "work", tmp_path / "other"
    work.mkdir()
    other.mkdir()
    (other / "precious").write_text("")
    lock = try_lock(work / LOCK)
    assert lock is not None
    work.rename(tmp_path / "aside")
    if link:
        work.symlink_to(other)
    else:
        other.rename(work)
    with pytest.raises(OSError, match=str(work)):
        empty_directory(work, (), lock)
    assert (work / "precious").exists()
    os.close(lock)


def test_discarding_a_directory(tmp_path: Path) -> None:
    """Only if nothing is in it that anybody needs."""
    work = tmp_path / "work"
    work.mkdir()
    (work / LOCK).write_text("")
    (work / "mine").write_text("")
    discard_empty(work)
    assert sorted(os.listdir(work)) == [LOCK, "mine"]
    discard_empty(work, (LOCK, "mine", "other"))
    assert not work.exists()
