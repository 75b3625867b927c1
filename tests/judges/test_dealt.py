"""Megatron reads an export of dealt steps: it builds nothing, and each step has its samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import distcache
from distcache.builder.configuration import config_from_mapping
from distcache.cache.contents import open_cache
from distcache.cache.deal import Deal
from distcache.megatron.export import export
from tests.judges.megatron import alone, build_with_megatron
from tests.support import here
from tests.support.corpora import mixed_lengths

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def files_in(directory: Path) -> dict[str, bytes]:
    """Return all files of a directory."""
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("corpus", ["", "plain"])
@pytest.mark.parametrize("deal", ["64x8x2", "96x3x4@7"])
def test_steps_have_their_samples(
    corpus: str, deal: str, corpora: dict[str, str], tmp_path: Path
) -> None:
    """At the places at which our own reader has them; of a blend, and of one corpus."""
    fields: dict[str, Any] = mixed_lengths(corpora)
    if corpus:
        fields |= {"blend": [corpora[corpus]], "samples": {"train": 1500}}
    path = here.build(fields, tmp_path / "shared").path
    directory = tmp_path / "out"
    made = export(open_cache(path), directory, deal=Deal.parse(deal))
    assert made.deal == deal
    before = files_in(directory)
    with alone():
        theirs = build_with_megatron(config_from_mapping(fields), directory)[0]
        read = [theirs[place]["tokens"].tolist() for place in range(len(theirs))]
    assert files_in(directory) == before
    cache = distcache.open(path)
    dealt, plain = cache.dataset("train", deal=deal), cache.dataset("train")
    assert [dealt[place]["tokens"].tolist() for place in range(len(read))] == read
    in_order = [plain[place]["tokens"].tolist() for place in range(len(read))]
    assert read != in_order
    shape = Deal.parse(deal)
    for begin in range(shape.begin, len(read), shape.batch):
        step = slice(begin, begin + shape.batch)
        assert sorted(read[step]) == sorted(in_order[step])
