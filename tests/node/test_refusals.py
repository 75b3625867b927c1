"""What is wrong with the shared side or the disk is an error, and leaves no record."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from distcache.cache.format import BLOCK_SIZE
from distcache.errors import CacheCorrupt, ConfigError, CorpusError, NoSpace
from distcache.node.records import read_records
from distcache.node.store import Store
from tests.node.agents import flip, run, run_on
from tests.support import here

NODES = (1, 2)


@pytest.mark.parametrize("nodes", NODES)
def test_a_corrupt_cache_is_refused(cache: Path, tmp_path: Path, nodes: int) -> None:
    """A corrupt cache is refused, and leaves no record."""
    flip(cache, BLOCK_SIZE if cache.stat().st_size > BLOCK_SIZE else 9000)
    with pytest.raises(CacheCorrupt, match="differ from their digest"):
        run_on(nodes, cache, tmp_path / "local")
    assert not list(read_records(Store(tmp_path / "local")))
    assert not list((tmp_path / "local" / "caches").glob("*.h5"))


@pytest.mark.parametrize("nodes", NODES)
def test_a_changed_corpus_is_refused(
    own_corpora: dict[str, Any], cache: Path, tmp_path: Path, nodes: int
) -> None:
    """By the digest of its index, also where an earlier copy of it is here."""
    run(cache, tmp_path / "before")
    flip(Path(own_corpora["blend"][0]["path"] + ".idx"), 60)
    for root in ("local", "before"):
        with pytest.raises(CorpusError, match="not the file that the cache was built from"):
            run_on(nodes, cache, tmp_path / root)
        assert not list(read_records(Store(tmp_path / root)))


def test_a_corpus_of_another_size_is_refused(
    own_corpora: dict[str, Any], cache: Path, tmp_path: Path
) -> None:
    """All of them are named, and what was here stays ready."""
    run(cache, tmp_path / "local")
    with open(own_corpora["blend"][0]["path"] + ".bin", "ab") as stream:
        stream.write(b"x")
    os.truncate(own_corpora["blend"][1]["path"] + ".idx", 70)
    with pytest.raises(CorpusError) as caught:
        run(cache, tmp_path / "local")
    assert len(caught.value.problems) == 2
    assert list(read_records(Store(tmp_path / "local")))


def test_too_little_space(cache: Path, tmp_path: Path) -> None:
    """It says the numbers, and leaves everything as it was."""
    run(cache, tmp_path / "local")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "local").rglob("*")}
    other = tmp_path / "other.h5"
    shutil.copy(cache, other)
    with pytest.raises(NoSpace, match=r"\d+ bytes are needed and \d+ are to stay free"):
        run(cache, tmp_path / "fresh", reserve=1 << 60)
    assert not [path for path in (tmp_path / "fresh").rglob("*") if path.suffix == ".part"]
    run(cache, tmp_path / "local", reserve=1 << 60)  # nothing is needed
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "local").rglob("*")}
    assert after.keys() == before.keys()


def test_a_store_in_a_bucket(cache: Path) -> None:
    """It is refused: no directory is made of its name."""
    with pytest.raises(ConfigError, match="cannot be in a bucket"):
        here.localize(cache, "s3://lake/store")
