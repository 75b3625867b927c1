"""Caches of corpora that a test may change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import here


@pytest.fixture
def cache(own_corpora: dict[str, Any], shared: Path) -> Path:
    """A cache of corpora that a test may change."""
    return Path(here.build(own_corpora, shared, "c").path)
