"""A real S3 server for all tests of this directory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.seaweed import Seaweed


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """A SeaweedFS that runs."""
    server = Seaweed(tmp_path_factory.mktemp("seaweed") / "data")
    yield server
    server.close()
