"""Reading back before a cache is published: old bytes are read again, lost ones end the build."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distcache.builder import readback
from distcache.cache import open_cache
from distcache.cache.digests import read_pieces, verify_cache
from distcache.cache.format import BLOCK_SIZE
from distcache.errors import DistcacheError
from distcache.ranks.progress import NullProgress
from tests.support import here
from tests.support.large import write_large


class Noting(NullProgress):
    """A progress that keeps notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        """Keep a note."""
        self.notes.append(text)


@pytest.fixture(scope="module")
def fields(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the configuration of a cache of several blocks, with borders within arrays."""
    corpora = tmp_path_factory.mktemp("large")
    return {
        "sequence_length": 24,
        "split": "98,1,1",
        "samples": {"train": 7_000_000, "valid": 100, "test": 100},
        "blend": [
            {"path": write_large(corpora / name, 700_000), "weight": weight}
            for name, weight in (("a", 2), ("b", 1))
        ],
    }


def showing(
    change: Callable[[int, np.ndarray[Any, Any]], None],
) -> Callable[..., Iterator[np.ndarray[Any, Any]]]:
    """Return a way of reading that changes pieces, by what was read before them."""
    count = 0

    def read(descriptor: int, begin: int, end: int) -> Iterator[np.ndarray[Any, Any]]:
        nonlocal count
        for piece in read_pieces(descriptor, begin, end):
            change(count, piece)
            count += 1
            yield piece

    return read


def test_blocks_of_a_large_cache(fields: dict[str, Any], tmp_path: Path) -> None:
    """They have the digests that `verify` computes from the file alone."""
    cache = open_cache(here.build(fields, tmp_path).path)
    assert len(cache.table("blocks")) >= 3
    offsets = [view.offset for view in cache.arrays("sections", 0).values()]
    assert all(offset % BLOCK_SIZE for offset in offsets)
    verify_cache(cache)


@pytest.mark.parametrize("piece", [0, 1, 30, 63, 64, 65, 66])
def test_old_bytes_are_read_again(
    fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    """Old bytes are read again, and enter no digest, of an array or of a block."""

    def change(count: int, shown: np.ndarray[Any, Any]) -> None:
        if count == piece:
            shown[len(shown) // 2 :] = 0

    progress = Noting()
    monkeypatch.setattr(readback, "read_pieces", showing(change))
    monkeypatch.setattr(readback, "PAUSES", (0.0, None))
    outcome = here.build(fields, tmp_path, progress=progress)
    assert "1 items differ after read-back; reading again" in progress.notes
    verify_cache(open_cache(outcome.path))


def test_bytes_that_are_lost(
    fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They end the build, and the section is named; the next build makes the cache."""

    def change(_: int, shown: np.ndarray[Any, Any]) -> None:
        shown[:1] ^= 1

    monkeypatch.setattr(readback, "read_pieces", showing(change))
    monkeypatch.setattr(readback, "PAUSES", (0.0, 0.0, None))
    with pytest.raises(DistcacheError, match="sequences 0 to 686000 differs after read-back"):
        here.build(fields, tmp_path, "c")
    assert not (tmp_path / "c.h5").exists()
    monkeypatch.undo()
    verify_cache(open_cache(here.build(fields, tmp_path, "c").path))
