"""What all tests share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.caches import build_here
from tests.corpora import write_corpora
from tests.large import write_large

settings.register_profile(
    "distcache",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    print_blob=True,
)
settings.load_profile("distcache")


@pytest.fixture(scope="session")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Prefixes of all corpora by name."""
    return write_corpora(tmp_path_factory.mktemp("corpora"))


@pytest.fixture
def blend_config(corpora: dict[str, str]) -> dict[str, object]:
    """The fields of a configuration with all splits, three corpora and several epochs."""
    return {
        "sequence_length": 32,
        "seed": 99,
        "split": "80,15,5",
        "samples": {"train": 4000, "valid": 300, "test": 40},
        "blend": [
            {"path": corpora["plain"], "weight": 0.5},
            {"path": corpora["second"], "weight": 0.3},
            {"path": corpora["holes"], "weight": 0.2},
        ],
        "tokenizer": {"class": "NullTokenizer", "vocab_size": 30000},
    }


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A directory for caches."""
    directory = tmp_path / "shared"
    directory.mkdir()
    return directory


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
