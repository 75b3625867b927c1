"""Packed rows: whole documents by best-fit decreasing, each pass in another way, for any ranks."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from distcache.cache import open_cache
from distcache.corpus import open_idx
from distcache.kernels import fill_entries
from tests.plan.test_make import plan_of, problems_of
from tests.support import here
from tests.support.corpora import LENGTHS, write_lengths
from tests.support.mds_corpora import write_tokens
from tests.support.processes import start

LENGTH = 64
Row = list[tuple[int, int, int]]
"""The parts of a row: document, first token, token after the last."""


def fields_of(prefix: str, **more: Any) -> dict[str, Any]:
    """Return the configuration of a packed corpus, all of which is for training."""
    return {
        "sequence_length": LENGTH,
        "pack": True,
        "split": "1",
        "samples": {"train": 500, "valid": 0, "test": 0},
        "blend": [prefix],
        **more,
    }


def rows_of(path: str, lengths: NDArray[Any], section: int = 0) -> list[Row]:
    """Return the rows of a section as they are, by what every reader of Megatron's arrays does."""
    cache = open_cache(path)
    found = {name: cache.read(view) for name, view in cache.arrays("sections", section).items()}
    documents, bounds = found["document_index"], found["sample_index"].astype(np.int64)
    assert sorted(found["shuffle_index"].tolist()) == list(range(len(bounds) - 1))
    rows = []
    for (first, begin), (last, end) in itertools.pairwise(bounds.tolist()):
        row = []
        for place in range(first, last + 1):
            at = begin if place == first else 0
            stop = end if place == last else int(lengths[documents[place]])
            if stop > at:
                row.append((int(documents[place]), at, stop))
        rows.append(row)
    return rows


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 3 * LENGTH), min_size=1, max_size=120),
    most=st.none() | st.integers(1, 4),
    longer=st.sampled_from(["cut", "drop"]),
    requested=st.integers(1, 400),
)
def test_what_rows_are(
    lengths: list[int],
    most: int | None,
    longer: str,
    requested: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Each pass has each token once, whole documents in one row; only a tail may be before them."""
    kept = {n: size for n, size in enumerate(lengths) if size > 0}
    if longer == "drop":
        kept = {n: size for n, size in kept.items() if size <= LENGTH}
    directory = tmp_path_factory.mktemp("packed")
    prefix = write_lengths(directory / "c", np.array(lengths, np.int64))
    pack = {"documents": most, "longer": longer}
    fields = fields_of(prefix, samples={"train": requested}, pack=pack)
    if not kept:
        reasons = ("no tokens", "empty .bin", "longer: drop leaves them out")
        assert any(reason in problems_of(fields)[0] for reason in reasons)
        return
    rows = rows_of(here.build(fields, directory).path, np.array(lengths))
    per_pass = plan_of(fields).sections[0].packed
    assert per_pass is not None
    passes = plan_of(fields).sections[0].size.passes
    assert len(rows) == passes * per_pass.rows >= requested > (passes - 1) * per_pass.rows
    for number in range(passes):
        seen: dict[int, list[tuple[int, int]]] = {}
        for row in rows[number * per_pass.rows : (number + 1) * per_pass.rows]:
            assert 0 < sum(end - begin for _, begin, end in row) <= LENGTH
            assert most is None or len(row) <= most
            assert all(begin == 0 for _, begin, _ in row[1:])
            assert row[0][1] % LENGTH == 0
            for document, begin, end in row:
                seen.setdefault(document, []).append((begin, end))
        assert seen.keys() == kept.keys()
        for document, parts in seen.items():
            begins = range(0, kept[document], LENGTH)
            assert sorted(parts) == [(b, min(b + LENGTH, kept[document])) for b in begins]


def test_problems(tmp_path: Path) -> None:
    """What packed rows cannot have is refused."""
    prefix = write_lengths(tmp_path / "c", LENGTHS["plain"])
    for wrong, expected in (
        ({"shuffle": "megatron"}, "expected passes: Megatron cuts samples, and does not pack"),
        ({"shuffle": "windows"}, "expected passes: samples are packed over a whole pass"),
        ({"shuffle": "none"}, "expected passes: samples are packed by length"),
        ({"window": 3}, "window: only shuffle: windows"),
        ({"add_extra_token": False}, "the last token of a row"),
        ({"sequence_length": (1 << 26) + 1}, "expected at most 67108864"),
    ):
        assert any(expected in problem for problem in problems_of(fields_of(prefix, **wrong)))
    short = write_lengths(tmp_path / "s", np.array([70, 80]))
    found = problems_of(fields_of(short, pack={"longer": "drop"}))
    assert "are longer than sequence_length" in found[0]


def test_views_and_shards(tmp_path: Path) -> None:
    """Are packed as any corpus: each document of a pass once, as its corpus has it."""
    here.index(write_tokens(tmp_path / "mds"), tmp_path / "c")
    prefix = write_lengths(tmp_path / "plain", LENGTHS["plain"])
    words = ["select", prefix, "-o", tmp_path / "view", "--sample", "0.5", "--seed", "3"]
    done = start(words)
    assert done.returncode == 0, done.stderr
    for name in ("c", "view"):
        idx = open_idx(str(tmp_path / name))
        fields = fields_of(str(tmp_path / name), samples={"train": 20})
        cache = here.build(fields, tmp_path / "caches").path
        found: dict[int, int] = {}
        section = plan_of(fields).sections[0]
        assert section.packed is not None
        for row in rows_of(cache, idx.lengths)[: section.packed.rows]:
            for document, begin, end in row:
                found[document] = found.get(document, 0) + end - begin
        assert found == {n: int(size) for n, size in enumerate(idx.lengths) if size}


def test_entries_have_documents_and_lengths() -> None:
    """Entries have documents and lengths from lengths at any address, as those of an index are."""
    lengths = np.frombuffer(b"x" + np.arange(10, 20, dtype=np.int32).tobytes(), np.int32, 10, 1)
    entries = np.empty(3, np.int64)
    fill_entries(lengths, 4, entries)
    assert entries.view(np.int32).reshape(-1, 2).tolist() == [[4, 14], [5, 15], [6, 16]]


@pytest.mark.parametrize("begin", [-1, 8])
def test_entries_need_lengths(begin: int) -> None:
    """Entries need lengths, or nothing is read."""
    with pytest.raises(ValueError, match="a length for each entry"):
        fill_entries(np.zeros(10, np.int32), begin, np.empty(3, np.int64))
