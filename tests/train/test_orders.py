"""Packed rows, and caches that continue others, as training reads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import distcache
from distcache.cache import open_cache
from distcache.corpus import open_idx
from distcache.errors import ConfigError
from distcache.train.sampler import ResumableSampler
from tests.builder import test_phases
from tests.builder.test_packed import LENGTH, fields_of, rows_of
from tests.support import here
from tests.support.corpora import LENGTHS, write_corpus, write_lengths
from tests.support.mds_corpora import write_tokens


def test_what_a_loader_reads(tmp_path: Path) -> None:
    """The tokens of the row, padding, and loss within documents only."""
    lengths = np.array([40, 30, 20, 10, 150, 64, 65, 3, 128])
    documents = [np.append(np.arange(1, n) + 1000 * d, 0) for d, n in enumerate(lengths, 1)]
    prefix = str(tmp_path / "c")
    write_corpus(prefix, documents, "u2")
    path = here.build(fields_of(prefix, samples={"train": 12}), tmp_path / "caches").path
    dataset = distcache.open(path).dataset("train", eod=0, pad=7, eod_mask_loss=True)
    cache = open_cache(path)
    order = cache.read(cache.arrays("sections", 0)["shuffle_index"])
    rows = rows_of(path, lengths)
    assert len(dataset) == 12
    padded = 0
    for number in range(12):
        row = rows[order[number]]
        expected = np.concatenate([documents[d][begin:end] for d, begin, end in row])
        found = {name: values.numpy() for name, values in dataset[number].items()}
        assert found["tokens"][: len(expected)].tolist() == expected.tolist()
        has_loss = np.zeros(LENGTH, bool)
        has_loss[: len(expected)] = expected != 0
        assert (found["loss_mask"] > 0).tolist() == has_loss.tolist()
        following = {
            (d, at): documents[d][at + 1]
            for d, begin, end in row
            for at in range(begin, end)
            if at + 1 < len(documents[d])
        }
        places = [(d, at) for d, begin, end in row for at in range(begin, end)]
        for place, key in enumerate(places):
            assert not has_loss[place] or found["labels"][place] == following[key]
        padded += len(expected) < LENGTH
    assert padded


def test_a_blend_with_validation(tmp_path: Path) -> None:
    """Weights count rows; splits are ranges of sequences, and validation is packed, too."""
    corpora = {n: write_lengths(tmp_path / n, LENGTHS[n]) for n in ("plain", "second", "long")}
    fields = {
        "sequence_length": LENGTH,
        "order": "packed",
        "split": "90,10,0",
        "samples": {"train": 3000, "valid": 200, "test": 0},
        "blend": [{"path": path, "weight": 1.0 + n} for n, path in enumerate(corpora.values())],
    }
    cache = distcache.open(here.build(fields, tmp_path / "caches").path)
    train, valid = cache.dataset("train"), cache.dataset("valid")
    assert len(train) == 3000
    assert 200 <= len(valid) <= 203  # Megatron rounds each corpus up
    counts = np.bincount([int(train[n]["dataset_id"]) for n in range(3000)])
    assert np.abs(counts - np.array([500, 1000, 1500])).max() <= 1
    assert all(len(valid[n]["tokens"]) == LENGTH for n in range(200))


def test_packed_shards(tmp_path: Path) -> None:
    """Samples have the tokens of their documents, out of shards."""
    here.index(write_tokens(tmp_path / "mds"), tmp_path / "c")
    path = here.build(fields_of(str(tmp_path / "c"), samples={"train": 20}), tmp_path / "k").path
    dataset = distcache.open(path).dataset("train")
    lengths = open_idx(str(tmp_path / "c")).lengths
    order = open_cache(path).read(open_cache(path).arrays("sections", 0)["shuffle_index"])
    rows = rows_of(path, lengths)
    for number in range(20):
        assert len(dataset[number]["tokens"]) == LENGTH
        assert sum(end - begin for _, begin, end in rows[order[number]]) <= LENGTH


def test_a_sampler_of_the_cache_that_is_continued(tmp_path: Path) -> None:
    """Its state is accepted at the sample where the other cache goes on, and nowhere else."""
    fields = test_phases.fields_of(tmp_path, test_phases.THREE)
    old = here.build(fields, tmp_path / "caches").path
    more = {"continue": {"cache": old, "samples": 777}}
    more |= {"phases": [{"samples": 200, "weights": [0, 1, 3]}]}
    new = here.build(fields | more, tmp_path / "caches").path
    sampler = ResumableSampler(distcache.open(new).dataset("train"), 1)
    before = distcache.open(old).dataset("train")
    sampler.load_state_dict(ResumableSampler(before, 1, consumed_samples=777).state_dict())
    assert next(iter(sampler)) == [777]
    early = ResumableSampler(before, 1, consumed_samples=776).state_dict()
    with pytest.raises(ConfigError, match="cache_key is"):
        sampler.load_state_dict(early)
