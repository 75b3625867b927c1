"""Samples equal those of Megatron-Core itself, for every option that the release has."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from distcache.builder.configuration import config_from_mapping
from distcache.errors import ConfigError
from distcache.kernels import Permutation
from distcache.train.dataset import CachedDataset
from distcache.train.open import open_cache
from tests.judges.megatron import OPTIONS, alone, build_with_megatron, selected
from tests.support import here
from tests.support.corpora import write_corpus

EOD = 0
VOCABULARY = 9
LENGTH = 24
MASKS = ["reset_position_ids", "reset_attention_mask", "eod_mask_loss", "create_attention_mask"]
MASKS += [name for name in ("inter_document_masking",) if name in OPTIONS]  # since 0.19


@pytest.fixture(autouse=True, scope="module")
def _process_group() -> Iterator[None]:
    with alone():
        yield


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Corpora of few different tokens, of every integer type, with ends of documents anywhere."""
    random = np.random.default_rng(5)
    directory = tmp_path_factory.mktemp("texts")
    kinds = {"u1": 1, "i1": 1, "i2": 1, "i4": 1, "i8": 1, "u2": 2}
    prefixes = {}
    for name in kinds:
        lengths = random.integers(0, 40, 60)
        documents = [random.integers(0, VOCABULARY, n).astype(name) for n in lengths]
        write_corpus(str(directory / name), documents, name)
        prefixes[name] = str(directory / name)
    return prefixes


CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "blend": {"split": "70,20,10", "samples": {"train": 300, "valid": 20, "test": 5}},
    "no extra token": {
        "split": "70,30,0",
        "samples": {"train": 200, "valid": 20, "test": 0},
        "add_extra_token": False,
    },
    "partial validation": {
        "split": "60,40,0",
        "samples": {"train": 50, "valid": None, "test": 0},
        "drop_last_partial_validation_sequence": False,
        "weights": False,
    },
    "partial without extra token": {
        "split": "60,40,0",
        "samples": {"train": 50, "valid": None, "test": 0},
        "drop_last_partial_validation_sequence": False,
        "add_extra_token": False,
        "weights": False,
    },
    "one epoch": {"split": "80,20,0", "samples": None, "weights": False},
    "one corpus": {
        "split": "90,10,0",
        "samples": {"train": 150, "valid": 3, "test": 0},
        "corpora": 1,
    },
}


def fields_of(name: str, texts: dict[str, str]) -> dict[str, Any]:
    """Return the fields of a configuration."""
    fields = {"sequence_length": LENGTH, "seed": 3, "tokenizer": {"class": "X"}}
    fields |= CONFIGURATIONS[name]
    paths = list(texts.values())[: fields.pop("corpora", None)]
    if fields.pop("weights", len(paths) > 1):
        blend: list[Any] = [{"path": path, "weight": 1 + i} for i, path in enumerate(paths)]
    else:
        blend = list(paths)
    return fields | {"blend": blend, "mid_level_dataset_surplus": 0.5}


def require_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Compare samples: names, dtypes, shapes and values."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        ours, theirs = torch.as_tensor(found[name]), torch.as_tensor(value)
        assert ours.dtype == theirs.dtype, name
        assert torch.equal(ours, theirs), name


class Judge:
    """Megatron's dataset, made to forget the mask of the sample before.

    Where no option changes masks, it keeps the loss mask of the first sample that is asked for,
    after having set to zero what is padding in that sample; every later sample then lacks the loss
    there too. Samples that depend on what was asked for before are nothing to be equal to.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int | None) -> dict[str, Any]:
        for part in getattr(self.dataset, "datasets", [self.dataset]):
            part.masks_and_position_ids_are_cached = False
        return self.dataset[index]


def pairs(
    name: str, texts: dict[str, str], tmp_path: Path, pad: int, options: dict[str, Any]
) -> Iterator[tuple[Judge, CachedDataset]]:
    """Yield Megatron's dataset and ours, of each split."""
    fields = fields_of(name, texts)
    config = config_from_mapping(fields)
    theirs = build_with_megatron(config, tmp_path / "theirs", EOD, pad, **options)
    cache = open_cache(here.build(fields, tmp_path / "shared").path)
    found = 0
    for split, dataset in zip(("train", "valid", "test"), theirs, strict=True):
        if dataset is not None:
            found += 1
            yield Judge(dataset), cache.dataset(split, eod=EOD, pad=pad, **options)
    assert found == len(cache.splits)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.few(32)
@pytest.mark.parametrize(
    ("name", "masks"),
    selected(
        itertools.product(CONFIGURATIONS, itertools.product([False, True], repeat=len(MASKS)))
    ),
)
def test_every_sample_is_megatrons(
    name: str, masks: tuple[bool, ...], texts: dict[str, str], tmp_path: Path
) -> None:
    """Of each split, alone and in batches, with padding that no token, one, or the end is."""
    options = dict(zip(MASKS, masks, strict=True))
    for pad in (-1, 4, EOD):
        for theirs, ours in pairs(name, texts, tmp_path / str(pad), pad, options):
            assert len(ours) == len(theirs)
            step = max(len(ours) // 25, 1)
            for i in range(0, len(ours), step):
                require_equal(ours[i], theirs[i])
            wanted = list(range(0, len(ours), step))[:7]
            rows = ours.__getitems__(wanted)
            for row, i in zip(rows, wanted, strict=True):
                require_equal(dict(row), theirs[i])


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_megatrons(workers: int, texts: dict[str, str], tmp_path: Path) -> None:
    """Batches are Megatron's through the same DataLoader, in this process and in others."""
    options = {"eod_mask_loss": True, "create_attention_mask": False}
    for theirs, ours in pairs("blend", texts, tmp_path, 4, options):
        loaders = (DataLoader(data, batch_size=6, num_workers=workers) for data in (theirs, ours))
        count = 0
        for expected, found in zip(*loaders, strict=True):
            require_equal(found, expected)
            count += 1
        assert count == -(-len(theirs) // 6)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_none_is_a_sample_without_loss(texts: dict[str, str], tmp_path: Path) -> None:
    """None is a sample without loss as Megatron fills up a batch."""
    for theirs, ours in pairs("one corpus", texts, tmp_path, -1, {"create_attention_mask": True}):
        require_equal(ours[None], theirs[None])
        rows = ours.__getitems__([None, 1])
        require_equal(dict(rows[0]), theirs[None])
        require_equal(dict(rows[1]), theirs[1])


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_validation_sets_of_their_own(texts: dict[str, str], tmp_path: Path) -> None:
    """Each by its number."""
    paths = list(texts.values())
    fields = {
        "sequence_length": LENGTH,
        "samples": {"train": 40, "valid": None, "test": 0},
        "blend_per_split": {"train": paths[:2], "valid": paths[1:4]},
        "multiple_validation_sets": True,
        "full_validation": True,
        "tokenizer": {"class": "X"},
    }
    config = config_from_mapping(fields)
    theirs = build_with_megatron(config, tmp_path / "theirs", EOD, create_attention_mask=False)
    cache = open_cache(here.build(fields, tmp_path / "shared").path)
    assert len(theirs[1]) == 3
    for number, dataset in enumerate(theirs[1]):
        ours = cache.dataset("valid", number)
        assert len(ours) == len(dataset)
        require_equal(ours[len(ours) - 1], dataset[len(ours) - 1])
    with pytest.raises(ConfigError, match="has 3 datasets; say which"):
        cache.dataset("valid")


@pytest.mark.once
@pytest.mark.more
@pytest.mark.timeout(900)  # torch shuffles 215 million values, twice
def test_large_permutations_are_torchs() -> None:
    """From 2**32 // 20 values on, where torch draws in another way."""
    size = 2**32 // 20
    for count in (size - 1, size):
        generator = torch.Generator().manual_seed(3)
        expected = torch.randperm(count, generator=generator, dtype=torch.int32)  # draws are equal
        drawn = Permutation(3, count)
        drawn.skip(1000)
        found = np.empty(100_000, np.int64)
        drawn.next(found)
        assert np.array_equal(found, expected[1000:101_000].numpy())
