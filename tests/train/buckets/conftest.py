"""A node that has localized a cache from a bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import distcache
from distcache.storage.timeouts import SCALE, TimeLimits, limits
from tests.support import here
from tests.support.buckets import put_cache
from tests.support.scripted_s3 import ScriptedS3
from tests.train.buckets.reading import end_fetcher, reached


@pytest.fixture
def files(cache: Path) -> Any:
    """The samples, read from files."""
    return distcache.open(cache).dataset("train")


@pytest.fixture
def local(server: ScriptedS3, cache: Path, tmp_path: Path) -> Iterator[Path]:
    """The store of a node that has localized the cache from the bucket."""
    root = tmp_path / "local"
    here.localize(put_cache(server, cache), root)
    server.script()
    yield root
    end_fetcher(root)


@pytest.fixture
def remote(local: Path) -> Any:
    """The samples, read from the bucket."""
    return distcache.open("s3://lake/run/c.h5", local).dataset("train")


@pytest.fixture
def hurry(
    local: Path, monkeypatch: pytest.MonkeyPatch, scale_time: Callable[[float], None]
) -> Callable[[float], Any]:
    """Multiplies all limits, and returns the samples of a fetcher that has started before.

    Since a busy machine may start it after its limit.
    """
    kept: list[Any] = []

    def hurried(factor: float) -> Any:
        assert limits().fetcher_start == TimeLimits().fetcher_start
        monkeypatch.setenv(SCALE, str(factor))  # for the fetcher, not yet for this process
        kept.append(reached(local))
        scale_time(factor)
        return reached(local)

    return hurried
