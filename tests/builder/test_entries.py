"""A document index is filled with documents and lengths, of which few are held in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distcache.builder import entries
from distcache.builder.entries import documents_of, fill_passes, tokens_of
from distcache.corpus import open_idx, write_idx
from distcache.corpus.idx import Idx
from distcache.plan.model import SectionPlan
from distcache.plan.sizes import Cut, SectionSize
from tests.support.corpora import write_lengths

LENGTHS = np.arange(3, 43)


@pytest.fixture(scope="module")
def idx(tmp_path_factory: pytest.TempPathFactory) -> Idx:
    """Return an index of forty documents."""
    return open_idx(write_lengths(tmp_path_factory.mktemp("corpus") / "c", LENGTHS))


@given(st.data(), st.integers(1, 50))
def test_slices_of_epochs(idx: Idx, data: st.DataObject, step: int) -> None:
    """Every slice has the documents of its positions, in steps of any size."""
    begin = data.draw(st.integers(0, 39))
    end = data.draw(st.integers(begin + 1, 40))
    first, size = data.draw(st.integers(0, 120)), data.draw(st.integers(0, 120))
    cut = Cut(8, True, False)
    section = SectionPlan("k", 0, begin, end, 0, 1, cut, SectionSize(6, 9, None))
    filled = np.empty(size, np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entries, "FILL_STEP", step)
        fill_passes(section, idx, filled, first)
    expected = [begin + place % (end - begin) for place in range(first, first + size)]
    assert documents_of(filled).tolist() == expected
    assert tokens_of(filled) == LENGTHS[expected].sum()


def resident(prefix: str) -> int:
    """Return the bytes of a mapped file that are in this process's memory."""
    blocks = Path("/proc/self/smaps").read_text(encoding="utf-8").split("VmFlags:")
    (own,) = [block for block in blocks if f"{prefix}.idx" in block]
    return 1024 * int(own.partition("Rss:")[2].split()[0])


def test_lengths_are_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: Callable[..., None]
) -> None:
    """A large section holds the lengths of a step while it is filled, and none afterwards."""
    documents = 1 << 22
    prefix = str(tmp_path / "c")
    write_idx(prefix, np.ones(documents, np.int32), "u2")
    mapped = open_idx(prefix)
    section = SectionPlan("k", 0, 0, documents, 0, 1, Cut(8, True, False), SectionSize(1, 9, None))
    most: list[int] = []
    release = Idx.release_lengths

    def look_and_release(self: Idx, begin: int, end: int) -> None:
        most.append(resident(prefix))
        release(self, begin, end)

    limit("distcache.builder.entries", FILL_STEP=documents // 8)
    monkeypatch.setattr(Idx, "release_lengths", look_and_release)
    fill_passes(section, mapped, np.empty(documents, np.int64), 0)
    assert len(most) == 9
    assert max(most) < 8 << 20  # of 16 MiB: a step, and the kernel's large pages beside it
    assert resident(prefix) <= 2 << 20
