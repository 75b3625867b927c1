"""Lead this process to a test's server, without the connections of the test before."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import pytest

from distcache.storage.bucket import forget_buckets

OURS = ("AWS_", "MSC_")


@contextlib.contextmanager
def fresh_process_of_buckets(
    monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str]
) -> Iterator[None]:
    """Set the environment, and forget all buckets before and after."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", "/nonexistent")
    forget_buckets()
    yield
    forget_buckets()
