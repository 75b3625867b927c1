"""A signal ends the work, also where a library loses the exception for it."""

from __future__ import annotations

import contextlib

import pytest

from distcache.errors import BuildInterrupted
from distcache.ingest.tokenizers.tokenizer import refusing
from distcache.storage import interruption
from distcache.storage.interruption import interrupt, require_uninterrupted


@pytest.fixture(autouse=True)
def uninterrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without a signal."""
    monkeypatch.setattr(interruption, "_interruption", None)


def test_only_the_first_signal_raises() -> None:
    """A second one must not end the cleanup."""
    require_uninterrupted()
    with pytest.raises(BuildInterrupted, match="by the first"):
        interrupt("interrupted by the first")
    interrupt("interrupted by the second")
    with pytest.raises(BuildInterrupted, match="by the first"):
        require_uninterrupted()


def lose_it() -> None:
    """Make another error of a signal, as code in Rust does that imports a module meanwhile."""
    with contextlib.suppress(BuildInterrupted):
        interrupt("interrupted by a signal")
    raise AttributeError("'list' object has no attribute 'layout'")


def test_a_library_that_loses_it() -> None:
    """A library that loses it ends the work nevertheless."""
    with pytest.raises(BuildInterrupted, match="by a signal"), refusing():
        lose_it()
