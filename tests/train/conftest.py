"""A cache that is localized, for tests of training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import here


@pytest.fixture
def cache(blend_config: dict[str, Any], shared: Path) -> Path:
    """A shared cache."""
    return Path(here.build(blend_config, shared, "c").path)


@pytest.fixture
def store(cache: Path, tmp_path: Path) -> Path:
    """The store of a node that has a copy of it."""
    root = tmp_path / "local"
    here.localize(cache, root)
    return root
