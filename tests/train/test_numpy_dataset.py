"""Samples without torch are those of the torch dataset, array by array."""

from __future__ import annotations

import multiprocessing
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distcache
from distcache.errors import ConfigError
from tests.support import here

OPTIONS: list[dict[str, Any]] = [
    {},
    {"eod": 5, "eod_mask_loss": True, "reset_position_ids": True, "pad": 3},
    {"inter_document_masking": True, "position": True},
    {"inter_document_masking": True, "eod_mask_loss": "documents"},
]


@pytest.fixture
def cache(blend_config: dict[str, Any], shared: Path) -> str:
    """A cache of a blend."""
    return str(here.build(blend_config, shared, "c").path)


@pytest.mark.parametrize("options", OPTIONS)
def test_arrays_are_the_tensors(cache: str, options: dict[str, Any]) -> None:
    """Each array has the name, type, shape and values of the torch dataset's tensor."""
    opened = distcache.open(cache)
    for split in opened.splits:
        ours, theirs = opened.numpy_dataset(split, **options), opened.dataset(split, **options)
        assert len(ours) == len(theirs)
        for index in [*range(0, len(ours), 97), -1, None]:
            found, expected = ours[index], theirs[index]
            assert list(found) == list(expected)
            for name, values in found.items():
                tensor = expected[name].numpy()
                assert values.dtype == tensor.dtype
                np.testing.assert_array_equal(values, tensor)


def test_several_samples_are_read_together(cache: str) -> None:
    """A batch has a row for each sample, and samples are its rows."""
    dataset = distcache.open(cache).numpy_dataset("train")
    chosen = [4, 0, 77, 4]
    batch, samples = dataset.batch(chosen), dataset.__getitems__(chosen)
    for row, (index, sample) in enumerate(zip(chosen, samples, strict=True)):
        for name, values in dataset[index].items():
            np.testing.assert_array_equal(batch[name][row], values)
            np.testing.assert_array_equal(sample[name], values)
    assert dataset.__getitems__([]) == []


def test_torch_is_not_imported(cache: str) -> None:
    """A process that reads samples as arrays has not imported torch."""
    code = (
        "import sys, distcache; dataset = distcache.open(sys.argv[1]).numpy_dataset('train'); "
        "dataset[3]; dataset.document_of(3); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, cache], check=True, timeout=60)


def test_other_processes_and_threads(cache: str) -> None:
    """A dataset is pickled, used after a fork, and by threads at once."""
    dataset = distcache.open(cache).numpy_dataset("train")
    expected = [dataset[index]["tokens"] for index in range(50)]
    again = pickle.loads(pickle.dumps(dataset))
    np.testing.assert_array_equal(again[7]["tokens"], expected[7])
    with multiprocessing.get_context("fork").Pool(2) as pool:
        forked = pool.map(dataset.__getitem__, range(50))
    found: dict[int, Any] = {}

    def read(indices: range) -> None:
        for index in indices:
            found[index] = dataset[index]["tokens"]

    threads = [threading.Thread(target=read, args=(range(k, 50, 5),)) for k in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, tokens in enumerate(expected):
        np.testing.assert_array_equal(forked[index]["tokens"], tokens)
        np.testing.assert_array_equal(found[index], tokens)


def test_what_it_refuses(cache: str) -> None:
    """It makes no attention masks, and names a wrong split, option or sample."""
    opened = distcache.open(cache)
    with pytest.raises(ConfigError, match="makes no attention masks"):
        opened.numpy_dataset("train", create_attention_mask=True)
    with pytest.raises(ConfigError, match="has splits train"):
        opened.numpy_dataset("tests")
    with pytest.raises(ConfigError, match=r"numpy_dataset\('train'\): "):
        opened.numpy_dataset("train", padding=1)  # type: ignore[call-arg]
    dataset = opened.numpy_dataset("train")
    with pytest.raises(IndexError, match="sample"):
        dataset[len(dataset)]


def test_the_loss_ends_where_a_document_ends(cache: str) -> None:
    """By the bounds of the documents, whatever tokens are in them; the rest of the mask stays."""
    opened = distcache.open(cache)
    usual = opened.numpy_dataset("train", inter_document_masking=True)
    found = opened.numpy_dataset("train", inter_document_masking=True, eod_mask_loss="documents")
    length, ended = usual[0]["tokens"].size, 0
    for index in range(0, len(usual), 41):
        bounds = usual[index]["cu_seqlens"]
        ends = np.unique(bounds[(bounds > 0) & (bounds < length)]) - 1
        expected = usual[index]["loss_mask"].copy()
        expected[ends] = 0
        ended += len(ends)
        np.testing.assert_array_equal(found[index]["loss_mask"], expected)
    assert ended
    with pytest.raises(ConfigError, match="give inter_document_masking=True"):
        opened.numpy_dataset("train", eod_mask_loss="documents")
