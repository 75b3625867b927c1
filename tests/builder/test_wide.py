"""Sections beyond 2^31 entries and 2^32 samples; on slices, since no memory holds them whole."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from distcache.builder.arrays import LargeArray
from distcache.builder.document_index import IndexPart, read_across
from distcache.builder.finish import dataset_places, file_size, table_places
from distcache.builder.section_slice import RowCutter, row_bounds
from distcache.cache.skeleton import front_bytes
from distcache.corpus import CorpusFacts
from distcache.plan.assignment import assign
from distcache.plan.layout import make_layout
from distcache.plan.memory import lower_type, pivot_of
from distcache.plan.model import BlendPlan, Member, Plan, SectionPlan
from distcache.plan.sizes import Cut, SectionSize
from tests.plan.test_make import plan_of
from tests.support.corpora import LENGTHS

LENGTH = 2


@pytest.fixture(scope="module")
def wide_plan(corpora: dict[str, str]) -> Plan:
    """One section of 2^31 + 7 entries and more than 2^32 samples, from seven documents."""
    tokens = (2**31 // 7 + 1) * int(LENGTHS["tiny"].sum())
    samples = {"train": tokens // LENGTH - 1, "valid": 0, "test": 0}
    fields = {"sequence_length": LENGTH, "split": "1", "samples": samples}
    return plan_of({**fields, "blend": [corpora["tiny"]]})


@pytest.fixture(scope="module")
def wide(wide_plan: Plan) -> SectionPlan:
    """That section."""
    (section,) = wide_plan.sections
    assert section.documents > 2**31
    assert section.size.samples > 2**32
    return section


@given(st.lists(st.integers(0, 40), min_size=1, max_size=30), st.integers(1, 9))
def test_rows_far_into_a_section(wide: SectionPlan, lengths: list[int], room: int) -> None:
    """A slice at the end is cut in 64 bits, as a search in running sums cuts it."""
    begin = wide.documents - len(lengths)
    first_token = wide.size.passes * wide.tokens - sum(lengths)
    rows = row_bounds([0, first_token], wide)
    cut: list[NDArray[np.int64]] = []
    cutter = RowCutter(
        wide, (rows[1], rows[2]), (begin, first_token), room, lambda held: cut.append(held.copy())
    )
    cutter.feed(np.array(lengths, np.int32), begin)
    cutter.finish()
    found = np.concatenate([np.empty((0, 2), np.int64), *cut])
    assert len(found) == rows[2] - rows[1]
    ends = first_token + np.cumsum(np.array(lengths, np.int64))
    for row, (position, offset) in enumerate(found.tolist(), start=rows[1]):
        place = int(np.searchsorted(ends, row * LENGTH, side="right"))
        assert position == begin + place
        assert offset == row * LENGTH - int(ends[place] - lengths[place])


def test_parts_of_a_document_index_beyond_32_bits() -> None:
    """Positions are those of the whole index, also across the join of its parts."""
    first, second = LargeArray(4), LargeArray(4)
    first.values[:], second.values[:] = np.arange(4), np.arange(10, 14)
    parts = (IndexPart(2**33 - 4, first, np.array([1, 0], np.int32)), IndexPart(2**33, second))
    assert read_across(parts, 2**33 - 4, 2**33 + 2).tolist() == [1, 0, 2, 3, 10, 11]


def test_work_on_a_wide_section(wide_plan: Plan, wide: SectionPlan) -> None:
    """One rank builds it, by a pivot whose positions fit their type."""
    layout = make_layout(wide_plan.items)
    work = assign(wide_plan.items, layout, 8)
    assert not work.linked  # its links would need more than 32 bits
    assert max(work.memory) > 4 * 2**31
    assert lower_type(2**31 - 1) == np.int32
    assert lower_type(2**31) == np.int64
    assert 0 <= pivot_of(wide, 2) <= wide.first_documents


def test_a_file_of_a_hundred_gibibytes_is_laid_out(wide_plan: Plan, tmp_path: Path) -> None:
    """HDF5 puts each array where the layout says; the file is sparse."""
    layout = make_layout(wide_plan.items)
    places = dataset_places(wide_plan, layout)
    front = front_bytes(str(tmp_path / "scratch"), layout.data_begin, places)
    path = tmp_path / "sparse.h5"
    size = file_size(table_places(wide_plan, layout))
    assert size > 100 << 30
    with open(path, "wb") as stream:
        stream.write(front)
        stream.truncate(size)
    with h5py.File(path) as file:
        for place in layout.arrays[0]:
            dataset = file[place.name]["0"]
            assert dataset.id.get_offset() == place.offset
            assert (dataset.shape, dataset.dtype) == (place.shape, np.dtype(place.dtype))


def many_sections(count: int, samples: int, *, rows: bool, blended: bool) -> Plan:
    """Return a plan of as many corpora, with a blend of all of them or without one."""
    cut = Cut(1 if rows else 128, True, False)
    sizes = [SectionSize(1, samples + number, None) for number in range(count)]
    sections = [
        SectionPlan("k", 0, 0, samples, 10_000_000, 1, cut, size, rows=rows) for size in sizes
    ]
    names = [f"/shared/corpora/{number:05}_text_document" for number in range(count)]
    sources = [CorpusFacts(name, 32 * "0", 1, 1, 4, 10, 10, 10, 0) for name in names]
    weights = tuple(count * [1 / count])
    blends = [BlendPlan("b", "train", weights, (), count * samples)] if blended else []
    members = [
        Member("train", number, number, 1000, 0 if blended else None, 1 / count)
        for number in range(count)
    ]
    identity = {"sources": count * [32 * "0"]}
    parts = (tuple(sources), tuple(sections), tuple(blends), tuple(members))
    return Plan("k", identity, {}, *parts)


@pytest.mark.parametrize("blended", [False, True])
@pytest.mark.parametrize(
    ("rows", "samples"),
    [
        (False, 10_000),
        (False, 1_000_000),
        (False, 10_000_000),
        (True, 1_100_000),
        (True, 9_000_000),
    ],
)
@pytest.mark.parametrize("counts", [range(1, 60, 2), range(60, 200, 9), [1000, 3000]])
def test_metadata_fits(
    counts: Sequence[int], rows: bool, samples: int, blended: bool, tmp_path: Path
) -> None:
    """HDF5's metadata fits before the arrays, with the padding that large ones need."""
    for count in counts:
        plan = many_sections(count, samples, rows=rows, blended=blended)
        layout = make_layout(plan.items)
        places = dataset_places(plan, layout)
        front = front_bytes(str(tmp_path / "scratch"), layout.data_begin, places)
        assert len(front) == layout.data_begin, count
