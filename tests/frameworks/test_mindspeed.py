"""The Megatron-Core that MindSpeed-LLM is on finds every file under MindSpeed-LLM's names.

MindSpeed-LLM is not on PyPI. What it changes of Megatron-Core 0.12.1 is that the names of a
section's files have no split; so does this, and the rest is that release's own.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import distcache
from distcache.errors import ConfigError
from distcache.megatron.export import export
from distcache.megatron.names import Naming
from tests.frameworks.conftest import JUDGES
from tests.frameworks.judges import refuse
from tests.support.caches import build_here
from tests.support.corpora import LENGTHS, write_lengths
from tests.support.processes import start

sys.path.insert(0, str(JUDGES / "megatron_core"))
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from megatron.core.datasets import gpt_dataset, helpers
    from megatron.core.datasets.blended_megatron_dataset_builder import (
        BlendedMegatronDatasetBuilder,
    )
    from megatron.core.package_info import __version__ as release

TOKENIZER = {
    "class": "mindspeed_llm.training.tokenizer.tokenizer._AutoTokenizer",
    "tokenizer_path": ["/models/a"],
}
KINDS = ("document_index", "sample_index", "shuffle_index")


@pytest.fixture(autouse=True, scope="module")
def _process_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    store = tmp_path_factory.mktemp("store") / "store"
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def read_by_mindspeeds_names(self: Any) -> tuple[Any, ...]:
    """Load a section's arrays as MindSpeed-LLM names them; without its description, build."""
    stem = f"{self.unique_description_hash}-{type(self).__name__}"
    directory = Path(self.config.path_to_cache)
    if not (directory / f"{stem}-description.txt").is_file():
        raise AssertionError("it builds")
    return tuple(np.load(directory / f"{stem}-{kind}.npy", mmap_mode="r") for kind in KINDS)


@pytest.fixture(autouse=True)
def _builds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert release == "0.12.1"
    dataset = gpt_dataset.GPTDataset
    monkeypatch.setattr(dataset, "_build_document_sample_shuffle_indices", read_by_mindspeeds_names)
    monkeypatch.setattr(helpers, "build_blending_indices", refuse)
    monkeypatch.setattr(helpers, "build_exhaustive_blending_indices", refuse)


class Tokenizer:
    """As much of a tokenizer as the builder asks for."""

    unique_identifiers: ClassVar[dict[str, Any]] = OrderedDict(TOKENIZER)
    eod, pad = 0, -1


def configuration(kind: str, directory: Path) -> dict[str, Any]:
    """Return a configuration of a kind."""
    directory.mkdir()
    paths = [write_lengths(directory / n, LENGTHS[n]) for n in ("plain", "second", "third")]
    weighted = [{"path": path, "weight": w} for path, w in zip(paths, (3, 1, 2), strict=True)]
    fields: dict[str, Any] = {
        "sequence_length": 32,
        "seed": 7,
        "samples": {"train": 3000, "valid": 20, "test": 10},
        "tokenizer": TOKENIZER,
    }
    if kind == "per split":
        blends = {"train": weighted, "valid": [paths[0]], "test": paths}
        return fields | {"blend_per_split": blends}
    return fields | {"split": "98,1,1", "blend": weighted if kind == "blend" else paths[:1]}


@pytest.mark.parametrize("kind", ["blend", "one corpus", "per split"])
def test_mindspeed_finds_all(kind: str, tmp_path: Path) -> None:
    """Of all splits, and samples are those of the cache."""
    fields = configuration(kind, tmp_path / "data")
    cache = build_here(fields, tmp_path / "shared", "c").path
    done = start(["export", cache, "-o", tmp_path / "out", "--for", "mindspeed"])
    assert done.returncode == 0, done.stderr
    assert "--dataloader-" not in done.stdout
    assert "--per-dataset-sequences-path" not in done.stdout
    assert ("--per-split-data-args-path" in done.stdout) == (kind == "per split")
    names = os.listdir(tmp_path / "out")
    assert not [name for name in names if "-GPTDataset-train-" in name]

    def blend_of(entries: list[Any]) -> tuple[list[str], list[float] | None]:
        if isinstance(entries[0], str):
            return entries, None
        return [entry["path"] for entry in entries], [entry["weight"] for entry in entries]

    blend: dict[str, Any] = {"split": "98,1,1"}
    if kind == "per split":
        blend = {"blend_per_split": [blend_of(b) for b in fields["blend_per_split"].values()]}
    else:
        blend["blend"] = blend_of(fields["blend"])
    config = gpt_dataset.GPTDatasetConfig(
        random_seed=7, sequence_length=32, path_to_cache=str(tmp_path / "out"),
        tokenizer=Tokenizer(), reset_position_ids=False, reset_attention_mask=False,
        eod_mask_loss=False, create_attention_mask=False, **blend,
    )  # fmt: skip
    before = sorted(names)
    sizes = list(fields["samples"].values())
    made = BlendedMegatronDatasetBuilder(
        gpt_dataset.GPTDataset, sizes, lambda: True, config
    ).build()
    assert sorted(os.listdir(tmp_path / "out")) == before
    opened = distcache.open(cache)
    for split, theirs in zip(("train", "valid", "test"), made, strict=True):
        ours = opened.numpy_dataset(split)
        assert len(ours) == len(theirs)
        for index in range(0, len(ours), max(len(ours) // 100, 1)):
            sample = theirs[index]
            np.testing.assert_array_equal(ours[index]["tokens"], sample["tokens"].numpy())
            np.testing.assert_array_equal(ours[index]["labels"], sample["labels"].numpy())


def test_options_of_a_tokenizer_are_refused(tmp_path: Path) -> None:
    """MindSpeed-LLM describes its tokenizers itself: they come from a file that it wrote."""
    tokenizer = {"tokenizer_type": "NullTokenizer", "vocab_size": 9, "megatron": "0.16"}
    fields = configuration("blend", tmp_path / "data") | {"tokenizer": tokenizer}
    cache = distcache.open(build_here(fields, tmp_path / "shared").path).cache
    naming = Naming(framework="mindspeed")
    with pytest.raises(ConfigError, match=r"--tokenizer FILE, a description\.txt"):
        export(cache, tmp_path / "out", naming=naming)
    with pytest.raises(ConfigError, match="are Megatron-Core's, and not of MindSpeed-LLM"):
        export(cache, tmp_path / "out", naming=Naming(TOKENIZER, ("0.19",), None, "mindspeed"))
