"""Caches of corpora that a test may change."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.caches import build_here


@pytest.fixture
def cache(own_corpora: dict[str, Any], shared: Path) -> Path:
    """A cache of corpora that a test may change."""
    return Path(build_here(own_corpora, shared, "c").path)


@pytest.fixture
def own_corpora(blend_config: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """The configuration with copies of its corpora."""
    for source in blend_config["blend"]:
        own = tmp_path / Path(source["path"]).name
        for suffix in (".idx", ".bin"):
            shutil.copy(source["path"] + suffix, str(own) + suffix)
        source["path"] = str(own)
    return blend_config
