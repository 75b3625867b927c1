"""Packed rows, shards, and caches that continue others, as training reads them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distcache
from distcache.cache import open_cache
from distcache.corpus import open_idx
from distcache.errors import ConfigError, CorpusError, NotReady
from distcache.train.sampler import ResumableSampler
from tests.builder import test_phases
from tests.builder.test_packed import LENGTH, rows_of
from tests.builder.test_packed import fields_of as packed_fields
from tests.support import here
from tests.support.corpora import LENGTHS, write_corpus, write_lengths
from tests.support.mds_corpora import DOCUMENTS, fields_of, write_tokens
from tests.support.mds_writer import write_mds


def samples_of(cache: str | Path, split: str = "train") -> list[Any]:
    """Return the tokens of all samples of a split."""
    dataset = distcache.open(cache).dataset(split)
    return [dataset[i]["tokens"].tolist() for i in range(len(dataset))]


@pytest.fixture
def plain(tmp_path: Path) -> str:
    """The tokens as a corpus with a `.bin`."""
    write_corpus(str(tmp_path / "plain"), DOCUMENTS, "i4")
    return str(tmp_path / "plain")


@pytest.mark.wild
def test_the_arrays_and_samples_are_those_of_a_bin(plain: str, tmp_path: Path) -> None:
    """Of raw shards, read where they lie; both kinds mix in a blend."""
    here.index(write_tokens(tmp_path / "data"), tmp_path / "mds")
    other = str(tmp_path / "other")
    write_corpus(other, [document[::-1] for document in DOCUMENTS], "i4")
    made = [
        here.build(fields_of(prefix, other), tmp_path / "caches", name)
        for name, prefix in (("bin", plain), ("shards", str(tmp_path / "mds")))
    ]
    assert made[0].key != made[1].key
    for split in ("train", "valid", "test"):
        assert samples_of(made[0].path, split) == samples_of(made[1].path, split)


@pytest.mark.wild
def test_a_bin_beside_the_table_is_preferred(plain: str, tmp_path: Path) -> None:
    """Though the shards are compressed; without it they are not ready."""
    here.index(write_tokens(tmp_path / "data", codec="zstd"), tmp_path / "mds")
    built = here.build(fields_of(str(tmp_path / "mds")), tmp_path / "caches")
    with pytest.raises(NotReady, match=r"shard\.00000\.mds\.zstd: is compressed, and training"):
        samples_of(built.path)
    idx = open_idx(str(tmp_path / "mds"))
    end = int(idx.offsets[-1]) + 4 * int(idx.lengths[-1])
    size = int(distcache.open(built.path).cache.table("sources")["bin_size"][0])
    content = np.zeros(size, np.uint8)
    assert end <= size
    for document, at in zip(DOCUMENTS, idx.offsets.tolist(), strict=True):
        data = document.astype("<i4").tobytes()
        content[at : at + len(data)] = np.frombuffer(data, np.uint8)
    content.tofile(tmp_path / "mds.bin")
    expected = here.build(fields_of(plain), tmp_path / "caches")
    assert samples_of(built.path) == samples_of(expected.path)


@pytest.mark.wild
def test_samples_in_more_shards_than_may_be_open(
    plain: str, tmp_path: Path, limit: Callable[..., None]
) -> None:
    """A sample opens as many as it needs; batches are cut."""
    here.index(write_tokens(tmp_path / "data", per_shard=1), tmp_path / "mds")
    fields = fields_of(str(tmp_path / "mds")) | {"sequence_length": 2000}
    expected = samples_of(here.build({**fields, "blend": [plain], "samples": None}, tmp_path).path)
    built = here.build({**fields, "blend": [str(tmp_path / "mds")], "samples": None}, tmp_path)
    for at_once in (1, 3, 56):
        limit("distcache.train.reading", FILES_PER_READER=at_once)
        dataset = distcache.open(built.path).dataset("train")
        numbers = list(range(len(dataset)))
        found = [row["tokens"].tolist() for row in dataset.__getitems__(numbers)]
        assert found == expected


@pytest.mark.wild
def test_few_open_files_suffice(tmp_path: Path) -> None:
    """256 of them, for a thousand shards."""
    samples = [{"tokens": np.arange(n, n + 50, dtype="i4")} for n in range(1000)]
    data = write_mds(tmp_path / "data", {"tokens": "ndarray:int32"}, samples, per_shard=1)
    here.index(data, tmp_path / "mds")
    fields = {"sequence_length": 500, "split": "1", "blend": [str(tmp_path / "mds")]}
    built = here.build(fields, tmp_path / "caches")
    code = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
import distcache
dataset = distcache.open({built.path!r}).dataset("train")
print(sum(len(dataset[i]["tokens"]) for i in range(len(dataset))))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("49500\n", 0), done.stderr


@pytest.mark.wild
def test_shards_that_were_exchanged_or_cut(tmp_path: Path) -> None:
    """They are errors with the path of the shard, also when they are open."""
    data = write_tokens(tmp_path / "data")
    here.index(data, tmp_path / "mds")
    built = here.build(fields_of(str(tmp_path / "mds")), tmp_path / "caches")
    dataset = distcache.open(built.path).dataset("train")
    assert dataset[0]["tokens"].shape == (64,)
    shard = data / "shard.00003.mds"
    content = shard.read_bytes()
    shard.write_bytes(content[:60])
    with pytest.raises(CorpusError, match=r"shard\.00003\.mds: "):
        samples_of(built.path)
    with pytest.raises(CorpusError, match=r"shard\.00003\.mds: "):
        dataset.__getitems__(list(range(len(dataset))))
    shard.unlink()
    with pytest.raises(NotReady, match=r"shard\.00003\.mds: no such file: .* put it back"):
        samples_of(built.path)


def test_what_a_loader_reads(tmp_path: Path) -> None:
    """The tokens of the row, padding, and loss within documents only."""
    lengths = np.array([40, 30, 20, 10, 150, 64, 65, 3, 128])
    documents = [np.append(np.arange(1, n) + 1000 * d, 0) for d, n in enumerate(lengths, 1)]
    prefix = str(tmp_path / "c")
    write_corpus(prefix, documents, "u2")
    path = here.build(packed_fields(prefix, samples={"train": 12}), tmp_path / "caches").path
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
        "pack": True,
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
    fields = packed_fields(str(tmp_path / "c"), samples={"train": 20})
    path = here.build(fields, tmp_path / "caches").path
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
