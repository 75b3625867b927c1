"""All arrays of small sections come from one call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from distcache.cache import open_cache
from distcache.kernels import build_small_sections
from tests.kernels.truth import sample_rows
from tests.plan.test_make import plan_of
from tests.support import here
from tests.support.corpora import write_lengths


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=30),
    st.integers(1, 3),
    st.integers(1, 12),
    st.booleans(),
    st.integers(0, 2**32 - 1),
    st.data(),
)
def test_its_arrays(
    lengths: list[int], epochs: int, length: int, extra: bool, seed: int, data: st.DataObject
) -> None:
    """They are those of NumPy's generator, shuffles and running sums."""
    begin = data.draw(st.integers(0, len(lengths) - 1))
    end = data.draw(st.integers(begin, len(lengths)))
    expected = np.tile(np.arange(begin, end), epochs)
    first_documents = data.draw(st.integers(0, len(expected)))
    order = np.arange(data.draw(st.integers(0, 20)))
    first_samples = data.draw(st.integers(0, len(order)))
    state = np.random.RandomState(seed)
    for part in (
        expected[:first_documents],
        expected[first_documents:],
        order[:first_samples],
        order[first_samples:],
    ):
        state.shuffle(part)
    sizes = [lengths[document] for document in expected]
    cut = [(0, 0), *sample_rows(sizes, length, int(extra))]
    beyond = (len(expected) - 1, (sizes[-1] if sizes else 0) - int(extra))
    count = data.draw(st.integers(1, len(cut) + 2))
    documents = np.empty(len(expected), np.int32)
    rows, samples = np.empty((count, 2), np.int32), np.empty(len(order), np.uint32)
    rule = [begin, end, first_documents, first_samples, seed, len(expected), count, len(order)]
    build_small_sections(
        (np.array(lengths, np.int32),), np.array([rule]), length, extra, documents, rows, samples
    )
    assert documents.tolist() == expected.tolist()
    assert [tuple(row) for row in rows.tolist()] == [*cut, beyond, beyond][:count]
    assert samples.tolist() == order.tolist()


RULE = {
    "begin": 0,
    "end": 5,
    "first_documents": 5,
    "first_samples": 2,
    "seed": 1,
    "documents": 5,
    "rows": 3,
    "samples": 2,
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"end": 6},
        {"begin": 2, "end": 2},
        {"begin": -1, "end": 4},
        {"end": 4},
        {"first_documents": 6},
        {"first_samples": -1},
        {"first_samples": 3},
        {"seed": 2**32},
        {"documents": 0},
        {"documents": 10},
        {"documents": -5},
        {"rows": 0},
        {"rows": 2},
        {"samples": 3},
        {"samples": -1, "first_samples": -1},
    ],
)
def test_what_does_not_fit_together(wrong: dict[str, int]) -> None:
    """It is refused, before anything is read."""
    call(RULE)
    with pytest.raises(ValueError, match=r"must (be|fit)"):
        call(RULE | wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"lengths": ()},
        {"rules": np.zeros((1, 7), np.int64)},
        {"sequence_length": 0},
        {"documents": np.empty(0, np.int32)},
        {"rows": np.empty((2, 3), np.int32)},
        {"samples": np.empty(4, np.uint32)},
    ],
)
def test_arrays_that_do_not_fit(wrong: dict[str, Any]) -> None:
    """They are refused."""
    with pytest.raises(ValueError, match="must"):
        call(RULE, **wrong)


def test_one_after_the_other() -> None:
    """The arrays of several sections follow one another, whatever is between their sizes."""
    lengths = (np.arange(1, 6, dtype=np.int32), np.full(3, 9, np.int32), np.zeros(4, np.int32))
    rules = np.array([[1, 5, 4, 3, 7, 8, 4, 3], [0, 0, 0, 0, 8, 0, 1, 0], [0, 4, 4, 2, 9, 4, 2, 2]])

    def build(some: slice) -> list[NDArray[Any]]:
        sizes = rules[some, 5:].sum(axis=0)
        arrays = [
            np.empty(sizes[0], np.int32),
            np.empty((sizes[1], 2), np.int32),
            np.empty(sizes[2], np.uint32),
        ]
        build_small_sections(lengths[some], rules[some].copy(), 6, True, *arrays)
        return arrays

    alone = [build(slice(place, place + 1)) for place in range(3)]
    for together, parts in zip(build(slice(0, 3)), zip(*alone, strict=True), strict=True):
        np.testing.assert_array_equal(together, np.concatenate(parts))


def call(rule: dict[str, int], **others: Any) -> None:
    """Build one section of five documents."""
    fields = {
        "lengths": (np.ones(5, np.int32),),
        "rules": np.array([list(rule.values())]),
        "sequence_length": 2,
        "extra_token": True,
        "documents": np.empty(5, np.int32),
        "rows": np.empty((3, 2), np.int32),
        "samples": np.empty(2, np.uint32),
    }
    build_small_sections(**fields | others)


def test_a_split_of_less_than_a_document(tmp_path: Path, shared: Path) -> None:
    """It has a section without documents, as Megatron's has."""
    path = write_lengths(tmp_path / "corpus", np.full(300, 40))
    fields = {
        "sequence_length": 128,
        "split": "969,30,1",
        "samples": {"train": 17, "valid": 1, "test": None},
        "blend": [{"path": path}],
    }
    cache = open_cache(here.build(fields, shared).path)
    sizes = [section.documents for section in plan_of(fields).sections]
    assert sizes[-1] == 0
    shapes = {name: view.shape for name, view in cache.arrays("sections", len(sizes) - 1).items()}
    assert shapes == {"document_index": (0,), "sample_index": (1, 2), "shuffle_index": (0,)}
