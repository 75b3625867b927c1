"""Which file a loader reads, while copies are mended, damaged and removed."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest

import distcache
from distcache.node.store import Store
from distcache.node.upkeep import verify_store
from tests.node.agents import flip, only, run


def test_a_copy_in_use_is_mended_beside(cache: Path, tmp_path: Path) -> None:
    """Who has it open reads on; who opens it next gets the mended one."""
    report = only(run(cache, tmp_path / "local"))
    opened = distcache.open(cache, local=tmp_path / "local")
    data = opened.dataset("train")
    before = [data[number]["tokens"].tolist() for number in range(5)]
    inode = os.stat(report.cache).st_ino
    flip(Path(report.cache), os.stat(report.cache).st_size // 2)
    run(cache, tmp_path / "local")
    assert os.stat(report.cache).st_ino != inode
    assert [data[number]["tokens"].tolist() for number in range(5)] == before
    assert verify_store(Store(tmp_path / "local")) == []


def test_falling_back_is_a_warning_of_its_own(cache: Path, tmp_path: Path) -> None:
    """Which scripts may filter, or turn into an error."""
    report = only(run(cache, tmp_path / "local"))
    opened = distcache.open(cache, local=tmp_path / "local")
    assert opened.is_local
    os.truncate(report.cache, 5000)
    with warnings.catch_warnings():
        warnings.simplefilter("error", distcache.SharedFileWarning)
        with pytest.raises(distcache.SharedFileWarning):
            distcache.open(cache, local=tmp_path / "local")
    with pytest.warns(distcache.SharedFileWarning):
        assert not distcache.open(cache, local=tmp_path / "local").is_local
