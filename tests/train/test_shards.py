"""Training from MDS shards: the same samples as from the same tokens in a `.bin`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distcache
from distcache.corpus import open_idx
from distcache.errors import CorpusError, NotReady
from tests.support import here
from tests.support.corpora import write_corpus
from tests.support.mds_corpora import DOCUMENTS, fields_of, write_tokens
from tests.support.mds_writer import write_mds

pytestmark = pytest.mark.wild


def samples_of(cache: str | Path, split: str = "train") -> list[Any]:
    """Return the tokens of all samples of a split."""
    dataset = distcache.open(cache).dataset(split)
    return [dataset[i]["tokens"].tolist() for i in range(len(dataset))]


@pytest.fixture
def plain(tmp_path: Path) -> str:
    """The tokens as a corpus with a `.bin`."""
    write_corpus(str(tmp_path / "plain"), DOCUMENTS, "i4")
    return str(tmp_path / "plain")


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
