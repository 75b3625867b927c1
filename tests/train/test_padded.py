"""Each document of a packed sample may be padded to a multiple, as context parallelism needs it."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distcache
from distcache.cache import open_cache
from distcache.errors import ConfigError
from distcache.ledger.report import make_report
from distcache.ledger.trace import trace
from distcache.megatron.export import export
from tests.orders.orders import LENGTH, Tokens, build_numbered
from tests.support import here
from tests.support.corpora import write_corpus

MULTIPLES = [1, 2, 4, 8, 16]


def padded(**more: Any) -> dict[str, Any]:
    """Return the fields of a configuration that pads."""
    return {"pack": {"pad_to_multiple_of": 4, **more}}


@pytest.mark.parametrize("multiple", MULTIPLES)
def test_rows_are_documents_with_padding_behind_each(multiple: int, tmp_path: Path) -> None:
    """Bounds are multiples, positions restart, and the loss ends with each document."""
    path = build_numbered(tmp_path, pack={"pad_to_multiple_of": multiple})
    truth, traced = Tokens(path), trace(path)
    dataset = distcache.open(path).numpy_dataset(
        "train", inter_document_masking=True, unpadded_bounds=True, eod_mask_loss="documents"
    )
    within = 0  # samples within a longer document
    for position in range(len(dataset)):
        _, tokens = truth.of(position)
        found, parts = dataset[position], traced.samples([position])
        sizes = (parts.ends - parts.begins - parts.label_only)[parts.ends > parts.begins]
        sizes = sizes[sizes > 0].tolist()
        bounds, true = found["cu_seqlens"], found["cu_seqlens_unpadded"]
        assert not (bounds % multiple).any()
        rooms = [-(-size // multiple) * multiple for size in sizes]
        rooms[-1] += LENGTH - sum(rooms)
        assert bounds[: len(sizes) + 1].tolist() == [0, *itertools.accumulate(rooms)]
        assert (bounds[len(sizes) :] == LENGTH).all()
        is_within = len(tokens) == LENGTH + 1 and multiple > 1
        within += is_within
        row, labels = np.zeros(LENGTH, np.int64), np.zeros(LENGTH, np.int64)
        mask, places = np.zeros(LENGTH), np.zeros(LENGTH, np.int64)
        taken = 0
        for begin, size, room in zip(bounds, sizes, rooms, strict=False):
            own = slice(begin, begin + size)
            row[own] = tokens[taken : taken + size]
            labels[begin : begin + size - 1] = tokens[taken + 1 : taken + size]
            mask[begin : begin + size - 1] = 1
            places[begin : begin + room] = np.arange(room)
            taken += size
        if is_within:
            labels[-1], mask[-1] = tokens[-1], 1
        if multiple == 1:
            continue  # as Megatron pads: `orders/test_orders.py`
        assert true[: len(sizes) + 1].tolist() == [0, *itertools.accumulate(sizes)]
        assert (true[len(sizes) :] == sum(sizes)).all()
        assert found["tokens"].tolist() == row.tolist()
        assert found["position_ids"].tolist() == places.tolist()
        wanted = distcache.open(path).numpy_dataset("train", inter_document_masking=True)[position]
        assert wanted["labels"].tolist() == labels.tolist()
        assert wanted["loss_mask"].tolist() == mask.tolist()
    assert within > 5 or multiple == 1


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 70), min_size=1, max_size=60).filter(any),
    multiple=st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24]),
    most=st.integers(0, 4),
)
def test_a_pass_has_each_token_once(
    lengths: list[int], multiple: int, most: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever the multiple, with at most so many documents in a row."""
    directory = tmp_path_factory.mktemp("law")
    tokens = 1 + np.arange(sum(lengths))
    write_corpus(str(directory / "c"), np.split(tokens, np.cumsum(lengths)[:-1]), "i4")
    pack = {"pad_to_multiple_of": multiple} | ({"documents": most} if most else {})
    fields = {"sequence_length": 24, "pack": pack, "blend": [str(directory / "c")]}
    path = here.build(fields | {"samples": None, "split": "1,0,0"}, directory).path
    dataset = distcache.open(path).numpy_dataset(
        "train", inter_document_masking=True, unpadded_bounds=True
    )
    batch = dataset.batch(range(len(dataset)))
    assert not (batch["cu_seqlens"] % multiple).any()
    if most:
        assert (np.diff(batch["cu_seqlens_unpadded"]) > 0).sum(axis=1).max() <= most + (
            multiple == 1
        )
    found: list[int] = []
    for one in batch["tokens"]:
        found += one[one > 0].tolist()
    if multiple > 1:  # without, Megatron shows the next document's first token
        assert sorted(found) == tokens.tolist()
    assert set(found) == set(tokens.tolist())


def test_ledgers_count_true_tokens(tmp_path: Path) -> None:
    """And what fills rows up is padding."""
    path = build_numbered(tmp_path, **padded())
    report = make_report(trace(path))
    dataset = distcache.open(path).numpy_dataset(
        "train", inter_document_masking=True, unpadded_bounds=True
    )
    batch = dataset.batch(range(len(dataset)))
    true = batch["cu_seqlens_unpadded"].max(axis=1).sum()
    assert sum(one.trained_tokens for one in report.corpora) == true
    assert report.padding == pytest.approx(1 - true / (len(dataset) * LENGTH))
    parts = trace(path).samples(np.arange(len(dataset)))
    assert (parts.ends - parts.begins - parts.label_only).sum() == true


def test_what_no_reader_of_megatrons_can_pad_is_not_exported(tmp_path: Path) -> None:
    """The error names what can."""
    path = build_numbered(tmp_path, **padded(), tokenizer={"class": "X"})
    with pytest.raises(ConfigError, match="materialize --multiple-of"):
        export(open_cache(path), tmp_path / "out")


def test_multiples_that_do_not_divide_a_sample_are_refused(tmp_path: Path) -> None:
    """With both numbers; and bounds without padding need bounds."""
    with pytest.raises(ConfigError, match=r"pad_to_multiple_of: 5, expected a divisor of .* 16"):
        build_numbered(tmp_path, pack={"pad_to_multiple_of": 5})
    path = build_numbered(tmp_path, **padded())
    with pytest.raises(ConfigError, match="give inter_document_masking=True"):
        distcache.open(path).numpy_dataset("train", unpadded_bounds=True)


def test_masks_that_go_by_a_token_are_refused(tmp_path: Path) -> None:
    """The end of a document is before its padding, which would belong to the next one."""
    cache = distcache.open(build_numbered(tmp_path, **padded()))
    for name in ("reset_position_ids", "reset_attention_mask"):
        with pytest.raises(ConfigError, match="give inter_document_masking=True instead"):
            cache.dataset("train", eod=0, **{name: True})
