"""Rows are those of OLMo-core's packer, document by document."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from distcache.kernels import count_packed, fill_entries, pack_documents
from tests.judges.bare_import import JUDGES
from tests.judges.olmo import new_packer

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(
        not (JUDGES / "olmo" / "installed").exists(), reason="`scripts/judges` unpacks OLMo-core"
    ),
]


@pytest.mark.parametrize("row_length", [8, 64, 1024])
@pytest.mark.parametrize("kind", ["uniform", "log-normal", "short", "long"])
def test_rows_are_those_of_olmo(row_length: int, kind: str) -> None:
    """Of documents that fit; equal lengths are taken in the given order."""
    random = np.random.default_rng(row_length)
    for _ in range(12):
        count = int(random.integers(1, 800))
        lengths = {
            "uniform": random.integers(1, row_length + 1, count),
            "log-normal": random.lognormal(np.log(row_length / 6), 1.0, count),
            "short": random.integers(1, row_length // 4 + 1, count),
            "long": random.integers(row_length // 2, row_length + 1, count),
        }[kind]
        lengths = np.clip(lengths, 1, row_length).astype(np.int32)
        packer = new_packer(row_length)
        for document in np.argsort(-lengths, kind="stable").tolist():
            packer._pack_document(document, int(lengths[document]))
        entries = np.empty(count, np.int64)
        fill_entries(lengths, 0, entries)
        found = count_packed(lengths, row_length, 0, True)
        documents, starts = np.empty(count, np.int32), np.empty((found.rows, 2), np.int32)
        pack_documents(entries, row_length, 0, True, 0, documents, starts)
        bounds = [*starts[:, 0].tolist(), count]
        rows = [documents[a:b].tolist() for a, b in itertools.pairwise(bounds)]
        assert rows == packer.instance_bins
        assert not starts[:, 1].any()
