"""A cache that is localized, for tests of training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from distcache.node.localize import localize
from distcache.node.records import LocalizeOptions
from distcache.ranks.communicator import SerialCommunicator
from tests.support.caches import build_here


@pytest.fixture
def cache(blend_config: dict[str, Any], shared: Path) -> Path:
    """A shared cache."""
    return Path(build_here(blend_config, shared, "c").path)


@pytest.fixture
def store(cache: Path, tmp_path: Path) -> Path:
    """The store of a node that has a copy of it."""
    root = tmp_path / "local"
    localize(SerialCommunicator(), cache, LocalizeOptions(directory=str(root)))
    return root
