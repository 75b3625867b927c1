"""Which file a loader reads, while copies are repaired, damaged and removed."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest

import distcache
from distcache.errors import ConfigError, NotReady
from distcache.node.store import Store
from distcache.node.upkeep import verify_store
from tests.node.agents import flip, only, run


def test_a_copy_in_use_is_repaired_in_place(cache: Path, tmp_path: Path) -> None:
    """A process that has it open reads on, and reads right bytes then."""
    report = only(run(cache, tmp_path / "local"))
    opened = distcache.open(cache, local=tmp_path / "local")
    data = opened.dataset("train")
    before = [data[number]["tokens"].tolist() for number in range(5)]
    flip(Path(report.cache), os.stat(report.cache).st_size // 2)
    run(cache, tmp_path / "local")
    assert [data[number]["tokens"].tolist() for number in range(5)] == before
    assert verify_store(Store(tmp_path / "local")) == []


def test_falling_back_is_a_warning_of_its_own(cache: Path, tmp_path: Path) -> None:
    """Falling back is a warning of its own, which scripts may filter, or turn into an error."""
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


@pytest.mark.parametrize(("path", "local"), [(3, None), (None, None), ("c.h5", 3)])
def test_what_is_no_path(path: Any, local: Any) -> None:
    """What is no path is named, with what it should be."""
    with pytest.raises(ConfigError, match="expected a path"):
        distcache.open(path, local=local)


@pytest.mark.parametrize(
    ("split", "number", "message"),
    [
        ("train", "0", "expected the name of a split, then a number"),
        (0, None, "expected the name of a split, then a number"),
        ("none", None, "has splits train, valid, test, not 'none'"),
        ("train", 1, "number is 1, but split 'train' has 1"),
    ],
)
def test_datasets_that_are_not_there(cache: Path, split: Any, number: Any, message: str) -> None:
    """They are refused at once, and the message names those that there are."""
    with pytest.raises(ConfigError, match=message):
        distcache.open(cache).dataset(split, number)


def test_a_store_without_a_copy_of_a_file_that_is_gone(cache: Path, tmp_path: Path) -> None:
    """It says so of both."""
    run(cache, tmp_path / "local")
    with pytest.raises(NotReady, match="other"):
        distcache.open(cache.with_name("other.h5"), local=tmp_path / "local")
