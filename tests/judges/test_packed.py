"""Unmodified Megatron-Core reads packed rows, rows of passes, and blends of phases, as we do."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from distcache.builder.configuration import config_from_mapping
from distcache.cache import open_cache as open_file
from distcache.errors import ConfigError
from distcache.kernels import count_packed, fill_entries, pack_documents
from distcache.megatron.export import export
from distcache.megatron.names import Naming
from distcache.node.records import read_records
from distcache.node.store import Store
from distcache.plan.config import as_sources
from distcache.train.open import open_cache
from tests.judges.bare_import import JUDGES, new_packer
from tests.judges.megatron import OPTIONS, alone, build_with_megatron
from tests.judges.test_samples import Judge, require_equal
from tests.node.agents import run
from tests.support import here
from tests.support.corpora import write_corpus

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from megatron.core.datasets import gpt_dataset, helpers

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

EOD, PAD, LENGTH = 0, 9, 24
MASKS: list[dict[str, Any]] = [
    {"eod_mask_loss": True, "create_attention_mask": False},
    {
        "eod_mask_loss": True,
        "reset_position_ids": True,
        "reset_attention_mask": True,
        "create_attention_mask": False,
    },
    *(
        [{"eod_mask_loss": True, "inter_document_masking": True, "create_attention_mask": False}]
        if "inter_document_masking" in OPTIONS
        else []
    ),
]
PHASES = [{"samples": 150, "weights": [5, 1, 0]}, {"samples": 100, "weights": [1, 2, 2]}]
CASES: dict[str, dict[str, Any]] = {
    "packed": {"pack": True},
    "packed, few documents": {"pack": {"documents": 2}},
    "packed, none cut": {"pack": {"longer": "drop"}},
    "passes": {"shuffle": "passes"},
    "phases": {"phases": PHASES},
    "packed phases": {"pack": True, "phases": PHASES},
}


@pytest.fixture(autouse=True, scope="module")
def _process_group() -> Iterator[None]:
    with alone():
        yield


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Corpora of documents that end with the token for it, some longer than a row."""
    random = np.random.default_rng(7)
    directory = tmp_path_factory.mktemp("documents")
    prefixes = []
    for name, most in (("short", 12), ("mixed", 60), ("long", 100)):
        lengths = random.integers(1, most, 150)
        documents = [np.append(random.integers(1, 8, n - 1), EOD).astype("u2") for n in lengths]
        write_corpus(str(directory / name), documents, "u2")
        prefixes.append(str(directory / name))
    return prefixes


@pytest.fixture
def _building_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Megatron has to find everything."""

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("Megatron builds an index")

    for name in ("build_sample_idx", "build_blending_indices", "build_exhaustive_blending_indices"):
        monkeypatch.setattr(helpers, name, fail)
    monkeypatch.setattr(gpt_dataset, "_build_document_index", fail)
    monkeypatch.setattr(gpt_dataset, "_build_shuffle_index", fail)


def fields_of(case: str, corpora: list[str]) -> dict[str, Any]:
    """Return the configuration of a case."""
    blend: list[Any] = [{"path": path, "weight": 1.0 + n} for n, path in enumerate(corpora)]
    samples = {"train": 250, "valid": 20, "test": 0}
    if "phases" in CASES[case]:
        blend, samples = list(corpora), {"valid": 20, "test": 0}
    return {
        "sequence_length": LENGTH,
        "seed": 5,
        "split": "80,20,0",
        "tokenizer": {"class": "X"},
        "mid_level_dataset_surplus": 0.5,
        "samples": samples,
        "blend": blend,
    } | CASES[case]


@pytest.mark.usefixtures("_building_is_an_error")
@pytest.mark.parametrize("way", ["export", "localize"])
@pytest.mark.parametrize("case", CASES)
def test_every_sample_is_read(case: str, way: str, corpora: list[str], tmp_path: Path) -> None:
    """Tokens, labels, loss masks, positions, and the bounds of documents; nothing is built."""
    fields = fields_of(case, corpora)
    path = here.build(fields, tmp_path / "caches").path
    directory, wanted = tmp_path / "out", config_from_mapping(fields)
    if way == "export":
        export(open_file(path), directory)
    else:
        run(Path(path), tmp_path / "local", naming=Naming())
        store = Store(tmp_path / "local")
        (record,) = read_records(store)
        directory = store.view(record.name)
        local = [store.prefix(corpus.stem) for corpus in record.corpora]
        assert wanted.blend is not None
        entries = zip(as_sources(wanted.blend), local, strict=True)
        blend = tuple(msgspec.structs.replace(entry, path=prefix) for entry, prefix in entries)
        wanted = msgspec.structs.replace(wanted, blend=blend)
    before = sorted(file.name for file in directory.iterdir())
    cache = open_cache(path)
    for masks in MASKS:
        theirs = build_with_megatron(wanted, directory, EOD, PAD, **masks)
        for split, dataset in zip(("train", "valid"), theirs, strict=False):
            ours = cache.dataset(split, eod=EOD, pad=PAD, **masks)
            assert len(dataset) == len(ours)
            for number in range(0, len(ours), 3):
                require_equal(ours[number], Judge(dataset)[number])
    assert sorted(file.name for file in directory.iterdir()) == before


@pytest.mark.since("0.19")
@pytest.mark.parametrize("more", [{}, {"pack": True}])
def test_documents_that_are_filled_up(
    more: dict[str, Any], corpora: list[str], tmp_path: Path
) -> None:
    """Megatron sees bounds that are multiples, and has no loss on what fills documents up."""
    blend = []
    for number, prefix in enumerate(corpora):
        here.materialize(prefix, tmp_path / f"c{number}", multiple_of=8, eod=EOD)
        blend.append({"path": str(tmp_path / f"c{number}"), "weight": 1.0 + number})
    fields = fields_of("packed", corpora) | {"blend": blend, "pack": None} | more
    path = here.build(fields, tmp_path / "caches").path
    directory = tmp_path / "out"
    export(open_file(path), directory)
    train, *_ = build_with_megatron(config_from_mapping(fields), directory, EOD, PAD, **MASKS[-1])
    ends = 0
    for number in range(len(train)):
        sample = Judge(train)[number]
        assert not (sample["cu_seqlens"] % 8).any()
        fills = sample["tokens"] == EOD
        assert not sample["loss_mask"][fills].any()
        ends += int(fills.sum())
    assert ends > len(train)


def random_case(random: np.random.Generator, directory: Path) -> tuple[dict[str, Any], list[str]]:
    """Return a configuration of small corpora whose tokens say which they are, and its corpora."""
    count = int(random.integers(1, 4))
    prefixes, start = [], 1
    for number in range(count):
        lengths = random.integers(1, int(random.choice([4, 12, 40])), int(random.integers(3, 30)))
        documents = []
        for length in lengths:
            documents.append(np.append(np.arange(start, start + length - 1), EOD).astype("u2"))
            start += int(length) - 1
        prefixes.append(str(directory / f"c{number}"))
        write_corpus(prefixes[-1], documents, "u2")
    samples = int(random.integers(1, 60))
    fields: dict[str, Any] = {
        "sequence_length": int(random.integers(2, 17)),
        "seed": int(random.integers(1000)),
        "split": "1",
        "tokenizer": {"class": "X"},
        "mid_level_dataset_surplus": 2.0,
        "samples": {"train": samples},
        "blend": [{"path": path, "weight": float(random.integers(1, 6))} for path in prefixes],
    }
    order = str(random.choice(["packed", "passes", "megatron"]))
    if order == "packed":
        longer = str(random.choice(["cut", "drop"]))
        fields["pack"] = {"longer": longer, "documents": None if random.random() < 0.5 else 2}
    else:
        fields["shuffle"] = order
    if random.random() < 0.5:
        weights = random.integers(0, 5, (2, count)) + np.array([[1], [0]])
        weights[1, int(random.integers(count))] += 1
        phases = [
            {"samples": int(size), "weights": row.tolist()}
            for size, row in zip(random.integers(1, 40, 2), weights, strict=True)
        ]
        fields |= {"phases": phases, "blend": prefixes, "samples": {"valid": 0}}
    return fields, prefixes


@pytest.mark.more
@pytest.mark.usefixtures("_building_is_an_error")
def test_random_caches(tmp_path: Path) -> None:
    """Megatron reads each as we do; packed rows lose and repeat nothing within a pass."""
    random = np.random.default_rng(11)
    read = 0
    for number in range(int(os.environ.get("DISTCACHE_CASES", "150"))):
        directory = tmp_path / str(number)
        directory.mkdir()
        fields, _ = random_case(random, directory)
        try:
            path = here.build(fields, directory).path
        except ConfigError as error:  # no document fits, or a surplus is too small
            if not any(reason in str(error) for reason in ("longer: drop", "surplus", "whole")):
                raise
            continue
        export(open_file(path), directory / "out")
        wanted = config_from_mapping(fields)
        masks = {"eod_mask_loss": True, "create_attention_mask": False}
        theirs = build_with_megatron(wanted, directory / "out", EOD, 65_535, **masks)[0]
        ours = open_cache(path).dataset("train", eod=EOD, pad=65_535, **masks)
        assert len(ours) == len(theirs)
        for sample in range(len(ours)):
            require_equal(ours[sample], Judge(theirs)[sample])
            read += 1
    assert read > 1000


@pytest.mark.once
@pytest.mark.skipif(
    not (JUDGES / "olmo" / "installed").exists(), reason="`scripts/judges` unpacks OLMo-core"
)
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
        found = count_packed(lengths, row_length, 0, True, 1)
        documents, starts = np.empty(count, np.int32), np.empty((found.rows, 2), np.int32)
        pack_documents(entries, row_length, 0, True, 1, 0, documents, starts)
        bounds = [*starts[:, 0].tolist(), count]
        rows = [documents[a:b].tolist() for a, b in itertools.pairwise(bounds)]
        assert rows == packer.instance_bins
        assert not starts[:, 1].any()
