"""What all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.corpora import write_corpora

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
