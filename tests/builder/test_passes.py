"""Orders of our own: every sample once before any comes twice, and shuffled within windows."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from distcache.builder.passes import pass_windows, sample_bounds
from distcache.cache import Cache, open_cache
from distcache.corpus import open_idx
from distcache.corpus.mds.shard_table import read_table
from distcache.errors import ConfigError
from distcache.plan.model import SectionPlan
from distcache.plan.sizes import Cut, SectionSize, samples_in
from tests.plan.test_make import plan_of
from tests.support import here
from tests.support.mds_corpora import DOCUMENTS, fields_of, write_tokens
from tests.support.mds_writer import write_mds


def section_of(begin: int, end: int, epochs: int, window: int | None) -> SectionPlan:
    """Return a section of rows."""
    size = SectionSize(epochs, epochs * (end - begin), None)
    cut = Cut(1, False, False)
    return SectionPlan("k", 0, begin, end, end - begin, 5, cut, size, "passes", window, True)


def arrays_of(cache: Cache, row: int = 0) -> dict[str, NDArray[Any]]:
    """Return the arrays of a section."""
    return {name: cache.read(view) for name, view in cache.arrays("sections", row).items()}


@given(data=st.data(), window=st.none() | st.integers(1, 6))
def test_a_pass_has_every_sequence_once(data: st.DataObject, window: int | None) -> None:
    """Those of a window are of so many shards, which a section may cut; passes differ."""
    firsts = np.cumsum(data.draw(st.lists(st.integers(0, 9), max_size=12)), dtype=np.int64)
    begin = data.draw(st.integers(0, 30))
    end = data.draw(st.integers(begin, 90))
    section = section_of(begin, end, 2, window)
    passes = [list(pass_windows(section, firsts, number)) for number in range(2)]
    for windows in passes:
        assert sorted(itertools.chain(*map(np.ndarray.tolist, windows))) == list(range(begin, end))
        shards = [set(np.searchsorted(firsts, part, "right").tolist()) for part in windows]
        assert window is None or all(len(own) <= window for own in shards)
        assert sum(map(len, shards)) == len(set().union(*shards))
    again = list(pass_windows(section, firsts, 0))
    assert all(map(np.array_equal, passes[0], again))


@given(
    sizes=st.lists(st.integers(0, 50), min_size=1, max_size=9),
    length=st.integers(1, 20),
    extra=st.booleans(),
)
def test_samples_are_of_the_window_in_which_they_end(
    sizes: list[int], length: int, extra: bool
) -> None:
    """Each of one, whatever comes after it."""
    tokens = np.concatenate([[0], np.cumsum(sizes)])
    cut = Cut(length, extra, False)
    bounds = sample_bounds(tokens, cut)
    assert bounds[0] == 0
    assert bounds[-1] == samples_in(int(tokens[-1]), cut)
    for window, (low, high) in enumerate(itertools.pairwise(bounds)):
        for sample in range(low, high):
            assert tokens[window] < (sample + 1) * length + extra <= tokens[window + 1]
    assert np.array_equal(sample_bounds(tokens[:-1], cut), bounds[:-1])


@pytest.mark.parametrize("order", ["passes", "windows"])
def test_tokens_in_passes(order: str, tmp_path: Path) -> None:
    """Each pass has every document once, samples are cut as always, each comes once."""
    here.index(write_tokens(tmp_path / "data"), tmp_path / "c")
    prefix = str(tmp_path / "c")
    window = {"window": 2} if order == "windows" else {}
    fields = fields_of(prefix) | {"shuffle": order, "split": "1", "blend": [prefix]} | window
    built = here.build(fields, tmp_path / "caches")
    found = arrays_of(open_cache(built.path))
    documents = found["document_index"]
    epochs = len(documents) // 40
    assert epochs > 2
    for number in range(epochs):
        one = documents[40 * number : 40 * number + 40]
        assert sorted(one.tolist()) == list(range(40))
    assert not np.array_equal(documents[:40], documents[40:80])
    lengths = open_idx(prefix).lengths[documents].astype(np.int64)
    ends = np.cumsum(lengths)
    for row, (place, offset) in enumerate(found["sample_index"].tolist()):
        assert ends[place] - lengths[place] + offset == 64 * row
    shuffle = found["shuffle_index"]
    assert sorted(shuffle.tolist()) == list(range(len(shuffle)))
    if order == "windows":
        firsts = read_table(prefix).rows["first_sequence"].astype(np.int64)
        shards = np.searchsorted(firsts, documents, "right")
        begins = found["sample_index"][shuffle.astype(np.int64), 0]
        # Of any 3 successive windows' samples, those of at most 3 windows' shards.
        assert max(len(set(shards[begins[k : k + 5]].tolist())) for k in range(60)) <= 5


def test_rows_have_one_array(tmp_path: Path) -> None:
    """The row of each sample; tokens and rows do not mix, nor with Megatron's order."""
    data = write_mds(tmp_path / "data", {"x": "int"}, [{"x": n} for n in range(50)])
    here.index(data, tmp_path / "rows", column="")
    prefix = str(tmp_path / "rows")
    fields = {
        "sequence_length": 1,
        "shuffle": "passes",
        "split": "80,20,0",
        "samples": {"train": 100, "valid": 10, "test": 0},
        "blend": [prefix],
    }
    cache = open_cache(here.build(fields, tmp_path / "caches").path)
    found = arrays_of(cache)
    assert list(found) == ["document_index"]
    order = found["document_index"].tolist()
    assert len(order) == 120
    assert [sorted(order[k : k + 40]) for k in (0, 40, 80)] == [list(range(40))] * 3
    for more, expected in (
        ({"shuffle": "megatron"}, "give shuffle: passes"),
        ({"sequence_length": 64}, "expected 1 for rows"),
    ):
        with pytest.raises(ConfigError, match=expected):
            plan_of(fields | more)
    here.index(write_tokens(tmp_path / "tokens"), tmp_path / "t")
    with pytest.raises(ConfigError, match="expected at least 2 tokens"):
        plan_of(fields | {"blend": [prefix, str(tmp_path / "t")]})
    assert len(DOCUMENTS) == 40
