"""A cache that tests damage copies of."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import here


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, corpora: dict[str, str]) -> Path:
    """A small cache with several sections and a blend."""
    fields = {
        "sequence_length": 16,
        "split": "90,10,0",
        "samples": {"train": 50, "valid": 5, "test": 0},
        "blend": [
            {"path": corpora["plain"], "weight": 0.5},
            {"path": corpora["second"], "weight": 0.5},
        ],
        "tokenizer": {"class": "X"},
    }
    return Path(here.build(fields, tmp_path_factory.mktemp("built")).path)
