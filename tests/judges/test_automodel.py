"""NeMo Automodel's own builder finds every file, builds nothing, and reads the same samples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import distcache
from distcache.errors import ConfigError
from distcache.megatron.export import export
from distcache.megatron.names import Naming
from tests.judges.bare_import import JUDGES, import_bare, refuse
from tests.support import here
from tests.support.corpora import LENGTHS, write_lengths
from tests.support.processes import start

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(
        not (JUDGES / "frameworks" / "installed").exists(),
        reason="`scripts/judges` unpacks NeMo Automodel",
    ),
]

BASE = "nemo_automodel.components.datasets.llm"
NAME = "meta-llama/Llama-3.1-8B"
TOKENIZER = {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": NAME, "megatron": "0.19"}

datasets = import_bare(
    f"{BASE}.megatron_dataset",
    "nemo_automodel",
    nemo_automodel__components__datasets__llm__formatting_utils={
        "_get_right_trailing_pad_mask": lambda tokens, *_: tokens == -1
    },
    nemo_automodel__components__datasets__loader={"DatasetBuildSchedule": object},
)
gpt = import_bare(f"{BASE}.megatron.gpt_dataset", "nemo_automodel")
builder = import_bare(f"{BASE}.megatron.builder", "nemo_automodel")


class Tokenizer:
    """As much of a Hugging Face tokenizer as the builder asks for."""

    name_or_path, pad_token_id, eos_token_id = NAME, 0, 1


@pytest.fixture(autouse=True, scope="module")
def _process_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    store = tmp_path_factory.mktemp("store") / "store"
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture(autouse=True)
def _builds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpt, "_build_document_index", refuse)
    monkeypatch.setattr(gpt, "_build_shuffle_index", refuse)
    monkeypatch.setattr(datasets, "compile_helper", lambda: None)
    helpers = import_bare(f"{BASE}.megatron.megatron_utils", "nemo_automodel")
    monkeypatch.setattr(helpers, "compile_helper", refuse)


def configuration(kind: str, directory: Path) -> dict[str, Any]:
    """Return a configuration of a kind."""
    paths = [write_lengths(directory / n, LENGTHS[n]) for n in ("plain", "second", "third")]
    weighted = [{"path": path, "weight": w} for path, w in zip(paths, (3, 1, 2), strict=True)]
    fields: dict[str, Any] = {
        "sequence_length": 32,
        "seed": 7,
        "split": "98,1,1",
        "samples": {"train": 3000, "valid": 20, "test": 10},
        "tokenizer": TOKENIZER,
    }
    match kind:
        case "blend":
            return fields | {"blend": weighted}
        case "exhaustive":
            return fields | {"blend": paths, "samples": dict.fromkeys(fields["samples"])}
        case "one corpus":
            return fields | {"blend": paths[:1], "split": "99,1,0"}
    del fields["split"]
    return fields | {"blend_per_split": {"train": weighted, "valid": [paths[0]], "test": paths}}


def datasets_of(document: dict[str, Any], split: str) -> Any:
    """Return the dataset that the YAML of an export makes Automodel build."""
    words = {name: value for name, value in document.items() if name != "_target_"}
    asked = {name: value for name, value in words.items() if name != "splits_to_build"}
    made = datasets.MegatronPretraining(
        **asked, splits_to_build=words["splits_to_build"], tokenizer=Tokenizer()
    )
    made.build()
    return made.get_dataset(split)


@pytest.mark.parametrize("kind", ["blend", "exhaustive", "one corpus", "per split"])
@pytest.mark.parametrize("how", ["export", "localize"])
def test_automodel_finds_all(kind: str, how: str, tmp_path: Path) -> None:
    """With the YAML as printed, it builds nothing, and samples are those of the cache."""
    (tmp_path / "data").mkdir()
    fields = configuration(kind, tmp_path / "data")
    cache = here.build(fields, tmp_path / "shared", "c").path
    to = "--out" if how == "export" else "--store"
    done = start([how, cache, to, tmp_path / "out", "--megatron", "automodel"])
    assert done.returncode == 0, done.stderr
    text = done.stdout.partition("# for NeMo Automodel 0.7:\n")[2]
    document = yaml.safe_load(text)
    assert set(document) == {"dataset", "validation_dataset"}
    ours = distcache.open(cache)
    for key, split, name in (
        ("dataset", "train", "train"),
        ("validation_dataset", "valid", "validation"),
    ):
        theirs, mine = datasets_of(document[key], name), ours.numpy_dataset(split)
        # It cuts a single corpus at the samples that are asked for.
        assert len(theirs) in (len(mine), fields["samples"][split])
        for index in range(0, len(theirs), max(len(theirs) // 200, 1)):
            sample = theirs[index]
            np.testing.assert_array_equal(mine[index]["tokens"], sample["input_ids"].numpy())
            np.testing.assert_array_equal(mine[index]["labels"], sample["labels"].numpy())


def test_another_tokenizer_is_not_found(tmp_path: Path) -> None:
    """The name of the tokenizer is part of the names, exactly as it is written."""
    (tmp_path / "data").mkdir()
    cache = here.build(configuration("blend", tmp_path / "data"), tmp_path / "shared", "c").path
    tokenizer = tmp_path / "tokenizer.yaml"
    tokenizer.write_text("tokenizer_type: HuggingFaceTokenizer\ntokenizer_model: other\n")
    words = ["export", cache, "-o", tmp_path / "out", "--megatron", "automodel"]
    done = start([*words, "--tokenizer", tokenizer])
    assert "tokenizer must be 'other' under exactly this name" in done.stdout
    document = yaml.safe_load(done.stdout.partition("# for NeMo Automodel 0.7:\n")[2])
    with pytest.raises(AssertionError, match="it builds"):
        datasets_of(document["dataset"], "train")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"add_extra_token": False}, "has add_extra_token: false, which NeMo Automodel"),
        ({"mid_level_dataset_surplus": 0.2}, "has mid_level_dataset_surplus: 0.2"),
        ({"pack": True, "tokenizer": {**TOKENIZER}}, "has packing, which NeMo Automodel"),
        ({"blend": 1}, "a blend of one corpus"),
        ({"tokenizer": None}, "does not know the tokenizer"),
        ({"tokenizer": {"class": "NullTokenizer"}}, "by the tokenizer's name_or_path"),
    ],
)
def test_what_would_differ_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    """What Automodel would read in another way has no names, and no file is written."""
    (tmp_path / "data").mkdir()
    fields = configuration("blend", tmp_path / "data") | change
    if change.get("blend") == 1:
        fields["blend"] = configuration("blend", tmp_path / "data")["blend"][:1]
    cache = distcache.open(here.build(fields, tmp_path / "shared", "c").path).cache
    with pytest.raises(ConfigError, match=message):
        export(cache, tmp_path / "out", naming=Naming(automodel=True))
    assert not (tmp_path / "out").exists()
