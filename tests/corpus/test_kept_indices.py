"""Small indices stay mapped while a block needs them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from distcache.corpus import CorpusFacts, corpus
from distcache.corpus.corpus import keeping_indices, open_examined
from distcache.corpus.examine import require_sound
from distcache.ranks.communicator import SerialCommunicator
from tests.support.corpora import write_lengths


@pytest.fixture
def facts(tmp_path: Path) -> list[CorpusFacts]:
    """Return what is known of three corpora."""
    prefixes = [write_lengths(tmp_path / name, np.array([3, 0, 5, 2])) for name in "abc"]
    return list(require_sound(SerialCommunicator(), prefixes, 1).values())


def test_only_within_blocks(facts: list[CorpusFacts]) -> None:
    """The outermost block ends it, whatever ends inside of it."""
    assert open_examined(facts[0]) is not open_examined(facts[0])
    with keeping_indices():
        first = open_examined(facts[0])
        with keeping_indices():
            assert open_examined(facts[0]) is first
        assert open_examined(facts[0]) is first
    assert open_examined(facts[0]) is not first


def test_bytes_are_bounded(facts: list[CorpusFacts], monkeypatch: pytest.MonkeyPatch) -> None:
    """The least recently used is unmapped, and large ones are not kept at all."""
    monkeypatch.setattr(corpus, "KEPT_INDICES", 2 * corpus.LEAST_COUNTED)
    with keeping_indices():
        first, second = open_examined(facts[0]), open_examined(facts[1])
        assert open_examined(facts[0]) is first
        open_examined(facts[2])
        assert open_examined(facts[0]) is first
        assert open_examined(facts[1]) is not second
    monkeypatch.setattr(corpus, "KEPT_INDEX", facts[0].idx_size - 1)
    with keeping_indices():
        assert open_examined(facts[0]) is not open_examined(facts[0])


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
