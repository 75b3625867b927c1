"""Samples are traced to documents, and documents to samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import distcache
from distcache.cache import open_cache
from distcache.cache.deal import Deal
from distcache.errors import CacheCorrupt, ConfigError
from distcache.ledger.trace import trace
from distcache.megatron.export import export
from tests.orders.orders import LENGTH, ORDERS, Tokens, build_numbered
from tests.support import here
from tests.support.corpora import mixed_lengths


@pytest.mark.parametrize("split", ["train", "valid"])
@pytest.mark.parametrize("case", ORDERS)
def test_parts_are_the_tokens_of_samples(case: str, split: str, tmp_path: Path) -> None:
    """The parts of each sample of each order have its tokens, in their order."""
    path = build_numbered(tmp_path, case)
    truth = Tokens(path, split)
    found = distcache.trace(path, split)
    assert len(found) == truth.members.size
    traced = found.samples(np.arange(len(found)))
    for position in range(len(found)):
        corpus, tokens = truth.of(position)
        own = slice(*traced.bounds[position : position + 2].tolist())
        begins = truth.starts[corpus][traced.sequences[own]]
        parts = zip(begins + traced.begins[own], begins + traced.ends[own], strict=True)
        assert traced.corpora[position] == corpus
        assert [token for low, high in parts for token in range(low, high)] == tokens.tolist()
        extra = truth.has_extra(tokens)
        assert traced.label_only[own].tolist() == [0] * (own.stop - own.start - 1) + [extra]
        assert len(tokens) <= LENGTH + extra


@pytest.mark.parametrize("case", ORDERS)
def test_positions_are_those_that_have_a_token(case: str, tmp_path: Path) -> None:
    """All positions of any sequences are found, and no others."""
    path = build_numbered(tmp_path, case)
    truth, found = Tokens(path), trace(path)
    samples = [truth.of(position) for position in range(len(found))]
    random = np.random.default_rng(1)
    for _ in range(40):
        corpus = int(random.integers(0, 3))
        count = len(truth.idx[corpus].lengths)
        wanted = random.integers(0, count, int(random.integers(1, 4)))
        starts = truth.starts[corpus]
        tokens = np.concatenate([np.arange(starts[one], starts[one + 1]) for one in wanted])
        expected = [
            position
            for position, (source, has) in enumerate(samples)
            if source == corpus and np.isin(has, tokens).any()
        ]
        assert found.positions(corpus, wanted).tolist() == expected


def test_several_validation_sets_are_traced_apart(tmp_path: Path) -> None:
    """Each validation set has a number, and samples of its own corpus."""
    corpora = [str(tmp_path / "corpora" / name) for name in ("short", "mixed", "long")]
    path = build_numbered(
        tmp_path,
        blend=None,
        split=None,
        multiple_validation_sets=True,
        blend_per_split={"train": [{"path": corpora[0], "weight": 1.0}], "valid": corpora},
        samples={"train": 50, "test": 0},
        full_validation=True,
    )
    for number in range(3):
        found = trace(path, "valid", dataset=number)
        assert set(found.samples(np.arange(len(found))).corpora.tolist()) == {number}
    with pytest.raises(ConfigError, match="has 3 datasets, counted from 0, and no number 3"):
        trace(path, "valid", dataset=3)


def test_corpora_are_named_or_numbered(tmp_path: Path) -> None:
    """A corpus is found by its number, its path in the configuration, or where it is now."""
    path = build_numbered(tmp_path)
    (tmp_path / "corpora").rename(tmp_path / "moved")
    found = trace(path, prefixes={str(tmp_path / "corpora"): str(tmp_path / "moved")})
    expected = found.positions(1, 5).tolist()
    assert found.positions(str(tmp_path / "corpora/mixed"), 5).tolist() == expected
    assert found.positions(str(tmp_path / "moved/mixed"), [5]).tolist() == expected
    with pytest.raises(ConfigError, match="has no corpus 'other'"):
        found.positions("other", 5)


def test_what_is_outside_is_refused(tmp_path: Path) -> None:
    """Positions, sequences and documents that do not exist are named."""
    found = trace(build_numbered(tmp_path))
    for position in (-1, len(found)):
        with pytest.raises(ConfigError, match=f"no position {position}"):
            found.samples([0, position])
    with pytest.raises(ConfigError, match="has 90 sequences"):
        found.positions(1, 90)
    with pytest.raises(ConfigError, match="has 90 documents"):
        found.sequences(1, 90)
    assert found.samples([]).bounds.tolist() == [0]
    assert found.positions(1, []).tolist() == []


@pytest.mark.parametrize("name", ["document_index", "sample_index", "shuffle_index"])
def test_damaged_arrays_are_no_answer(name: str, tmp_path: Path) -> None:
    """Arrays that lead outside of one another are refused, in both directions."""
    path = build_numbered(tmp_path)
    cache = Tokens(path).cache
    view = cache.arrays("sections", 1)[name]
    path.chmod(0o600)
    with path.open("r+b") as stream:
        stream.seek(view.offset)
        stream.write(np.full(view.nbytes // 4, 0x7FFFFFFF, "<u4").tobytes())
    found = trace(path)
    with pytest.raises(CacheCorrupt, match="distcache verify"):
        found.samples(np.arange(len(found)))
    if name != "sample_index":
        with pytest.raises(CacheCorrupt, match="distcache verify"):
            found.positions(1, 5)


@pytest.mark.parametrize("value", [-1, 3, 0x7FFF])
def test_damaged_blends_are_no_answer(value: int, tmp_path: Path) -> None:
    """A dataset index that names a dataset that is none, from either end."""
    path = build_numbered(tmp_path)
    cache = Tokens(path).cache
    view = cache.arrays("blends", 0)["dataset_index"]
    path.chmod(0o600)
    with path.open("r+b") as stream:
        stream.seek(view.offset + 7 * view.dtype.itemsize)
        stream.write(np.array(value, view.dtype).tobytes())
    found = trace(path)
    found.samples(np.arange(7))
    with pytest.raises(CacheCorrupt, match="distcache verify"):
        found.samples(np.arange(len(found)))


def test_exports_of_dealt_steps_are_refused(corpora: dict[str, str], tmp_path: Path) -> None:
    """Samples are searched for in the order of the cache."""
    path = here.build(mixed_lengths(corpora), tmp_path).path
    export(open_cache(path), tmp_path / "out", deal=Deal(64, 8, 2))
    with pytest.raises(ConfigError, match="made of, with --deal 64x8x2"):
        trace(tmp_path / "out")
