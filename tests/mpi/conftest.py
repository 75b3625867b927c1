"""A corpus that is large enough for its sections to be split over ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.caches import build_here
from tests.corpora import write_corpora
from tests.large import write_large


@pytest.fixture(scope="session")
def large_config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Two large sections, with the last epoch apart or a partial sample kept, and small ones."""
    directory = tmp_path_factory.mktemp("large")
    small = write_corpora(directory)
    large = write_large(directory / "large", 1_000_000)
    return {
        "sequence_length": 24,
        "seed": 77,
        "samples": {"train": 8_000_000, "valid": 5_000_000, "test": 1000},
        "drop_last_partial_validation_sequence": False,
        "blend_per_split": {
            "train": [large],
            "valid": [write_large(directory / "second", 1_300_000)],
            "test": [
                {"path": small["holes"], "weight": 0.4},
                {"path": small["third"], "weight": 0.6},
            ],
        },
        "tokenizer": {"class": "X"},
    }


@pytest.fixture(scope="session")
def large_file(large_config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration in a file."""
    path = tmp_path_factory.mktemp("config") / "large.json"
    path.write_text(json.dumps(large_config))
    return path


@pytest.fixture(scope="session")
def serial_bytes(large_config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What one process with one thread builds."""
    return Path(build_here(large_config, tmp_path_factory.mktemp("serial")).path).read_bytes()
