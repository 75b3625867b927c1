"""Loss masks are shifted as Megatron shifts labels, which is run over masks as if over tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distcache
from distcache.builder.configuration import config_from_mapping
from distcache.corpus.loss import loss_path
from tests.judges.megatron import alone, build_with_megatron
from tests.support import here
from tests.support.corpora import write_corpus


def write_pair(directory: Path, name: str, random: np.random.Generator) -> None:
    """Write a corpus with a mask, and one of the same lengths whose tokens are the mask."""
    lengths = random.integers(0, 40, 60)
    documents = [random.integers(1, 9, length).astype("u2") for length in lengths]
    masks = [random.integers(0, 2, length).astype("u2") for length in lengths]
    write_corpus(str(directory / "tokens" / name), documents, "u2")
    write_corpus(str(directory / "masks" / name), masks, "u2")
    mask = np.concatenate(masks).astype("u1").tobytes()
    Path(loss_path(str(directory / "tokens" / name))).write_bytes(mask)


@pytest.mark.parametrize("extra", [True, False])
@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_masks_are_megatrons_labels_of_masks(names: list[str], extra: bool, tmp_path: Path) -> None:
    """For every sample: the byte of a token is about predicting it."""
    random = np.random.default_rng(3)
    for kind in ("tokens", "masks"):
        (tmp_path / kind).mkdir()
    for name in names:
        write_pair(tmp_path, name, random)

    def fields_of(kind: str) -> dict[str, Any]:
        paths = [str(tmp_path / kind / name) for name in names]
        blend = paths if len(paths) == 1 else [{"path": path, "weight": 1.0} for path in paths]
        return {
            "sequence_length": 16,
            "seed": 5,
            "split": "80,20,0",
            "samples": {"train": 150, "valid": 20, "test": 0},
            "mid_level_dataset_surplus": 0.5,
            "add_extra_token": extra,
            "blend": blend,
        }

    cache = distcache.open(here.build(fields_of("tokens"), tmp_path / "caches").path)
    with alone():
        theirs = build_with_megatron(config_from_mapping(fields_of("masks")), tmp_path / "theirs")
        for split, dataset in zip(("train", "valid"), theirs, strict=False):
            ours = cache.dataset(split)
            assert len(dataset) == len(ours) > 0
            for number in range(len(ours)):
                labels = dataset[number]["labels"].tolist()
                wanted = labels if extra else [*labels[:-1], 0]
                assert ours[number]["loss_mask"].tolist() == wanted
