"""Megatron-Bridge itself asks for samples, and takes its datasets from a cache."""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import random
import runpy
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import distcache.megatron
from distcache.builder.configuration import config_from_mapping
from distcache.corpus.loss import loss_path
from distcache.errors import ConfigError
from distcache.megatron.samples import samples_of
from distcache.megatron.training_options import Training
from tests.judges import bridge
from tests.judges.megatron import alone, build_with_megatron
from tests.judges.test_samples import require_equal
from tests.support import here
from tests.support.corpora import LENGTHS, write_lengths
from tests.support.texts import read_corpus

pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning"), pytest.mark.once]
TOKENIZER = SimpleNamespace(eod=7, pad=7)
EXAMPLES = Path(__file__).parents[2] / "examples"
SAMPLES = {"train": 120, "valid": 40, "test": 10}


@pytest.fixture(autouse=True, scope="module")
def _process_group() -> Iterator[None]:
    with alone():
        yield


@pytest.fixture
def fields(tmp_path: Path) -> dict[str, Any]:
    """A configuration of a blend."""
    paths = [write_lengths(tmp_path / name, LENGTHS[name]) for name in ("plain", "second")]
    return {
        "sequence_length": 32,
        "seed": 9,
        "split": "80,15,5",
        "samples": SAMPLES,
        "blend": [{"path": path, "weight": 1 + i} for i, path in enumerate(paths)],
        "tokenizer": {"class": "X"},
    }


def provided(cache: Path, **more: Any) -> Any:
    """Return Megatron-Bridge's provider of a cache."""
    words = {"seq_length": 32, "random_seed": 9, "num_workers": 0, "eod_mask_loss": True} | more
    return distcache.megatron.CachedDatasetProvider(cache=str(cache), **words)


def datasets_of(found: Any) -> Any:
    """Return the datasets, as Megatron-Bridge's `pretrain` gets them."""
    provide = bridge.utils.get_dataset_provider(found)
    if importlib.util.find_spec("megatron.bridge.data.base"):  # it has a registry of builders
        assert not isinstance(found, bridge.config.DatasetProvider)
    else:
        assert isinstance(found, bridge.config.DatasetProvider)
    assert "tokenizer" in inspect.signature(provide).parameters
    return provide(list(SAMPLES.values()), found, tokenizer=TOKENIZER)


def test_samples_are_megatrons(fields: dict[str, Any], tmp_path: Path) -> None:
    """Samples are Megatron's in every split, through Megatron-Bridge's own loaders."""
    cache = Path(here.build(fields, tmp_path / "shared", "c").path)
    options = {"eod_mask_loss": True, "create_attention_mask": False}
    theirs = build_with_megatron(config_from_mapping(fields), tmp_path / "theirs", 7, 7, **options)
    configuration = provided(cache)
    for ours, judge in zip(datasets_of(configuration), theirs, strict=True):
        loaders = (
            bridge.loaders.build_pretraining_data_loader(
                dataset, 0, configuration.dataloader_type, 2, 0, True, pin_memory=False
            )
            for dataset in (ours, judge)
        )
        batches = 0
        for found, expected in zip(*loaders, strict=True):
            require_equal(found, expected)
            batches += 1
        assert batches == len(judge) // 2


def test_a_cache_for_something_else(fields: dict[str, Any], tmp_path: Path) -> None:
    """It is an error, but for more samples where the order need not be Megatron's."""
    fields["samples"] = SAMPLES | {"train": 121}
    cache = Path(here.build(fields, tmp_path / "shared", "c").path)
    with pytest.raises(ConfigError, match=r"samples\.train is 121 in the cache"):
        datasets_of(provided(cache))
    assert len(datasets_of(provided(cache, exact=False))[0]) >= 120
    with pytest.raises(ConfigError, match="seed is 9 in the cache, 8 in training"):
        datasets_of(provided(cache, random_seed=8, exact=False))


def test_counts_are_bridges() -> None:
    """Counts are Bridge's in 300 random configurations."""
    choose = random.Random(4)
    for _ in range(300):
        batch = choose.choice([1, 7, 64])
        total = choose.choice([0, 1, 999, 4096])
        fixed = {"train_samples": total} if total else {"train_iters": choose.randint(1, 500)}
        evaluation = {
            "eval_interval": choose.choice([1, 10, 1000]),
            "eval_iters": choose.choice([0, 3, 32]),
        }
        if hasattr(bridge.config, "ValidationConfig"):
            evaluation["eval_global_batch_size"] = choose.choice([None, 5])
        training = {"global_batch_size": batch} | evaluation | fixed
        asked = SimpleNamespace(**{"train_samples": None, "train_iters": total // batch} | training)
        configuration = SimpleNamespace(train=asked, validation=SimpleNamespace(**evaluation))
        counts = bridge.loaders.get_train_valid_test_num_samples(configuration)
        ours = samples_of(Training(seq_length=8, arithmetic="bridge", **training))
        assert (ours.train, ours.valid, ours.test) == counts


def test_the_example(fields: dict[str, Any], tmp_path: Path) -> None:
    """The example gives a configuration the datasets of a cache."""
    cache = here.build(fields, tmp_path / "shared", "c").path
    example = runpy.run_path(str(EXAMPLES / "bridge.py"))
    configuration = SimpleNamespace(
        model=SimpleNamespace(seq_length=32), rng=SimpleNamespace(seed=9), dataset=None
    )
    example["use"](configuration, str(cache))
    assert len(datasets_of(configuration.dataset)[0]) >= SAMPLES["train"]


def test_packed_rows_have_their_masks_again(tmp_path: Path) -> None:
    """What Megatron-Bridge has packed and shifted, `ingest tokens` unpacks and shifts back."""
    chosen = random.Random(5)
    sequences: dict[int, list[dict[str, Any]]] = {size: [] for size in range(33)}
    for number in range(200):
        size = chosen.randrange(2, 20)
        ids = [number, *(chosen.randrange(200, 300) for _ in range(size - 1))]
        mask = [chosen.random() < 0.5 for _ in ids]
        sequences[size].append({"input_ids": ids, "loss_mask": mask})
    lengths = [size for size, members in sequences.items() for _ in members]
    pairs = [lengths[place : place + 2] for place in range(0, len(lengths), 2)]
    wanted = {row["input_ids"][0]: row for members in sequences.values() for row in members}
    rows = bridge.packing.fill_packing_strategy(pairs, sequences, 32, 0)
    packed = pa.table({name: [row[name] for row in rows] for name in rows[0]})
    pq.write_table(packed, tmp_path / "packed.idx.parquet")
    here.ingest_tokens([tmp_path / "packed.idx.parquet"], tmp_path / "out", vocabulary=300)
    losses = np.fromfile(loss_path(str(tmp_path / "out")), np.uint8)
    begin = 0
    for tokens in itertools.chain.from_iterable(read_corpus(tmp_path / "out")):
        sequence = wanted.pop(int(tokens[0]))
        assert tokens.tolist() == sequence["input_ids"]
        assert losses[begin + 1 : begin + len(tokens)].tolist() == sequence["loss_mask"][1:]
        begin += len(tokens)
    assert not wanted
