"""What several tests of the kernels share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernels.prefetch_node import Node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """An empty buffer."""
    found = Node(tmp_path)
    yield found
    os.close(found.file)
