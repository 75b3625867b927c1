"""Small indices stay mapped while a block needs them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from distcache.corpus import CorpusFacts
from distcache.corpus.corpus import KEPT_INDEX, keeping_indices, open_examined
from distcache.corpus.examine import WORTH_WAITING, threads_at
from distcache.errors import CorpusError
from tests.support import here
from tests.support.corpora import write_lengths


@pytest.fixture
def facts(tmp_path: Path) -> list[CorpusFacts]:
    """Return what is known of three corpora."""
    prefixes = [write_lengths(tmp_path / name, np.array([3, 0, 5, 2])) for name in "abc"]
    return list(here.facts(prefixes).values())


def test_only_within_blocks(facts: list[CorpusFacts]) -> None:
    """The outermost block ends it, whatever ends inside of it."""
    assert open_examined(facts[0]) is not open_examined(facts[0])
    with keeping_indices():
        first = open_examined(facts[0])
        with keeping_indices():
            assert open_examined(facts[0]) is first
        assert open_examined(facts[0]) is first
    assert open_examined(facts[0]) is not first


def test_their_number_is_bounded(facts: list[CorpusFacts], limit: Callable[..., None]) -> None:
    """The first ones are kept while there is room."""
    limit("distcache.corpus.corpus", MAX_OPEN_INDICES=2)
    with keeping_indices():
        first, second, third = map(open_examined, facts)
        assert open_examined(facts[0]) is first
        assert open_examined(facts[1]) is second
        assert open_examined(facts[2]) is not third


def test_large_indices_are_not_kept(tmp_path: Path) -> None:
    """Of more than a megabyte."""
    large = here.sound(write_lengths(tmp_path / "large", np.ones(60_000, np.int64)))
    assert large.idx_size > KEPT_INDEX
    with keeping_indices():
        assert open_examined(large) is not open_examined(large)


def test_what_could_not_be_read_is_opened_again(facts: list[CorpusFacts]) -> None:
    """A mapping that was damaged is not the file for ever."""
    path = f"{facts[0].prefix}.idx"
    content = Path(path).read_bytes()
    with keeping_indices():
        damaged = open_examined(facts[0])
        os.truncate(path, 0)
        assert damaged.lengths.tolist() == [0, 0, 0, 0]
        assert not damaged.map.intact
        Path(path).write_bytes(content)
        again = open_examined(facts[0])
        assert again.lengths.tolist() == [3, 0, 5, 2]


def test_another_file_is_opened(facts: list[CorpusFacts]) -> None:
    """What took the place of an index that is kept is not what was examined."""
    with keeping_indices():
        (prefix,) = here.facts([facts[0].prefix])
        kept = open_examined(facts[0])
        write_lengths(Path(prefix), np.array([3, 0, 2]))
        assert open_examined(facts[0]) is kept  # until it is examined again
        again = here.sound(prefix)
        assert open_examined(again).lengths.tolist() == [3, 0, 2]
        with pytest.raises(CorpusError, match="when it was examined"):
            open_examined(facts[0])


def test_one_opening_serves_an_examination(facts: list[CorpusFacts], opened: list[str]) -> None:
    """The header, the check and the build read the same mapping."""
    opened.clear()
    with keeping_indices():
        found = here.facts([known.prefix for known in facts])
        for known in found.values():
            open_examined(known)
    assert [path for path in opened if path.endswith(".idx")] == [f"{f.prefix}.idx" for f in facts]


def test_threads_are_for_files_that_take_long() -> None:
    """Several open files only where the first ones took long; others would wait for each other."""
    assert threads_at(WORTH_WAITING, 8) == 8
    assert threads_at(WORTH_WAITING / 2, 8) == 1
