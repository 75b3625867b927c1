"""MDS data sets as corpora: indexed with every check, converted by nobody."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distcache.corpus.mds.index_json import CODECS
from distcache.corpus.mds.shard_table import read_table
from distcache.corpus.receipt import read_receipt
from distcache.errors import ConfigError, DistcacheError, KeyMismatch, NotReady
from tests.support import here
from tests.support.mds_corpora import DOCUMENTS, documents_of, virtual_bin, write_tokens
from tests.support.mds_writer import write_mds

pytestmark = pytest.mark.wild


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("encoding", "dtype", "stated"),
    [
        ("ndarray:int32", "int32", None),
        ("ndarray:uint32", "uint32", "uint32"),
        ("ndarray", "uint16", None),
        ("ndarray:uint64", "uint64", None),
        ("bytes", "int64", "int64"),
    ],
)
def test_tokens_of_any_encoding(
    encoding: str, dtype: str, stated: str | None, codec: str, tmp_path: Path
) -> None:
    """They are stored where the index says, and are those of every document, in order."""
    data = write_tokens(tmp_path / "data", encoding, dtype, codec=codec, hashes=["xxh64"])
    receipt = here.index(data, tmp_path / "c", dtype=stated, vocabulary=60_000)
    assert documents_of(tmp_path / "c") == [document.tolist() for document in DOCUMENTS]
    facts = here.sound(tmp_path / "c")
    assert facts.view
    assert facts.shards is not None
    assert facts.tokens == receipt.tokens == sum(map(len, DOCUMENTS))
    assert (receipt.kind, receipt.bin_size) == ("mds", len(virtual_bin(tmp_path / "c")))
    assert receipt.inputs[0].rows == 40
    assert not (tmp_path / "c.bin").exists()
    assert read_receipt(tmp_path / "c.receipt.json") == receipt
    assert here.index(data, tmp_path / "c", dtype=stated, vocabulary=60_000) == receipt


@pytest.mark.parametrize("at_once", [1, 7, 39])
def test_the_numbers_of_few_sequences_at_a_time(
    at_once: int, tmp_path: Path, limit: Callable[..., None]
) -> None:
    """They give the same index, however many are in memory."""
    data = write_tokens(tmp_path / "data", per_shard=3)
    here.index(data, tmp_path / "all")
    limit("distcache.edit.indexed_shards", BLOCK_SEQUENCES=at_once)
    here.index(data, tmp_path / "few")
    assert (tmp_path / "few.idx").read_bytes() == (tmp_path / "all.idx").read_bytes()


def test_a_shard_of_one_record(tmp_path: Path) -> None:
    """Its tokens begin at any byte, and are compared nevertheless."""
    data = write_tokens(tmp_path / "data", per_shard=1)
    here.index(data, tmp_path / "c", vocabulary=60_000)
    assert documents_of(tmp_path / "c") == [document.tolist() for document in DOCUMENTS]


def test_rows_are_whole_records(tmp_path: Path) -> None:
    """Rows are whole records of any columns, which the table describes; each has its bytes."""
    samples = [{"audio": bytes(range(n)), "text": "é" * n, "n": n} for n in range(20)]
    columns = {"audio": "bytes", "text": "str", "n": "int"}
    data = write_mds(tmp_path / "data", columns, samples, codec="gz")
    here.index(data, tmp_path / "c", column="")
    found = documents_of(tmp_path / "c")
    assert [len(row) for row in found] == [16 + n + 2 * n for n in range(20)]
    described = msgspec.json.decode(read_table(str(tmp_path / "c")).columns)
    assert described["column_names"] == ["audio", "n", "text"]
    other = write_mds(tmp_path / "other", {"n": "int"}, [{"n": 1}])
    with pytest.raises(ConfigError, match="one set of columns"):
        here.index([data, other], tmp_path / "both", column="")


def test_a_split_is_a_subdirectory(tmp_path: Path) -> None:
    """A split is a subdirectory; without it, the message says which ones there are."""
    write_tokens(tmp_path / "data" / "train")
    write_tokens(tmp_path / "data" / "val")
    here.index(tmp_path / "data", tmp_path / "c", split="train")
    with pytest.raises(NotReady, match="its subdirectories train, val have one"):
        here.index(tmp_path / "data", tmp_path / "d")
    with pytest.raises(ConfigError, match="expected the name of a subdirectory"):
        here.index(tmp_path / "data", tmp_path / "d", split="../x")


def test_a_path_that_leads_back_from_a_link(tmp_path: Path) -> None:
    """A path that leads back from a link is the place that the filesystem says."""
    write_tokens(tmp_path / "far" / "data")
    (tmp_path / "far" / "inner").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "far" / "inner")
    here.index(tmp_path / "link" / ".." / "data", tmp_path / "c")
    assert read_table(str(tmp_path / "c")).path_of(0).startswith(f"{tmp_path}/far/data/")


def test_raw_shards_beside_compressed_ones_are_taken(tmp_path: Path) -> None:
    """Nothing has to be unpacked then; one of another length is none."""
    data = write_tokens(tmp_path / "data", codec="zstd", keep_raw=True)
    here.index(data, tmp_path / "c")
    assert not read_table(str(tmp_path / "c")).rows["codec"].any()
    (data / "shard.00002.mds").write_bytes(b"short")
    here.index(data, tmp_path / "d")
    assert read_table(str(tmp_path / "d")).rows["codec"].tolist() == [0, 0, 1, 0, 0, 0]


def test_the_source_is_only_read(tmp_path: Path) -> None:
    """Nothing is written beside the shards."""
    data = write_tokens(tmp_path / "data", codec="zstd")
    before = sorted((path, path.stat().st_mtime_ns) for path in data.iterdir())
    for path in [*data.iterdir(), data]:
        path.chmod(0o555 if path == data else 0o444)
    here.index(data, tmp_path / "c")
    assert sorted((path, path.stat().st_mtime_ns) for path in data.iterdir()) == before


def test_bytes_whose_type_is_not_said(tmp_path: Path) -> None:
    """Bytes whose type is not said are refused."""
    data = write_tokens(tmp_path / "data", "bytes", "int64", codec="zstd")
    with pytest.raises(ConfigError, match="whose type the data does not say: give --dtype"):
        here.index(data, tmp_path / "c")


def test_empty_records_are_sequences_without_tokens(tmp_path: Path) -> None:
    """They are counted."""
    values = [b"", np.arange(3, dtype="i4").tobytes(), b""]
    data = write_mds(tmp_path / "d", {"tokens": "bytes"}, [{"tokens": v} for v in values])
    receipt = here.index(data, tmp_path / "c", dtype="int32")
    assert documents_of(tmp_path / "c") == [[], [0, 1, 2], []]
    assert receipt.inputs[0].empty == 2


def test_other_options_do_not_take_the_name(tmp_path: Path) -> None:
    """Nor does another data set."""
    data = write_tokens(tmp_path / "data")
    here.index(data, tmp_path / "c")
    with pytest.raises(KeyMismatch, match="differs in vocabulary"):
        here.index(data, tmp_path / "c", vocabulary=70_000)


def test_moving_and_compressing_keep_the_identity(tmp_path: Path) -> None:
    """Other bytes lose it."""
    digests = []
    for name, codec in (("a", "zstd"), ("b", "zstd")):
        data = write_tokens(tmp_path / name, codec=codec, keep_raw=name == "b")
        here.index(data, tmp_path / f"c-{name}")
        facts = here.facts([tmp_path / f"c-{name}"])
        digests.append(facts[str(tmp_path / f"c-{name}")].identity)
    assert digests[0] == digests[1]
    content = (data / "shard.00000.mds").read_bytes()
    (data / "shard.00000.mds").write_bytes(content[:-8] + b"\x01" * 8)  # of the last column
    here.index(data, tmp_path / "c-c")
    facts = here.facts([tmp_path / "c-c"])
    assert facts[str(tmp_path / "c-c")].identity != digests[0]


@pytest.mark.more
@given(data=st.data())
def test_any_columns(data: st.DataObject, tmp_path: Path) -> None:
    """Of any sizes, in any order; or a shard with anything in it."""
    names = data.draw(st.lists(st.sampled_from("abcxyz"), unique=True, max_size=4))
    kinds = {name: data.draw(st.sampled_from(["str", "int", "bytes", "uint8"])) for name in names}
    make = {
        "str": st.text(max_size=9),
        "int": st.integers(-9, 9),
        "bytes": st.binary(max_size=9),
        "uint8": st.integers(0, 255),
    }
    sizes = data.draw(st.lists(st.integers(1, 300), min_size=1, max_size=9))
    samples: list[dict[str, Any]] = [
        {name: data.draw(make[kind]) for name, kind in kinds.items()}
        | {"tokens": np.arange(size, dtype="u2")}
        for size in sizes
    ]
    directory = tmp_path / "data"
    shutil.rmtree(directory, ignore_errors=True)
    for path in tmp_path.glob("c.*"):
        path.unlink()
    encoding = data.draw(st.sampled_from(["ndarray", "ndarray:uint16"]))
    per_shard = data.draw(st.integers(1, 9))
    write_mds(directory, kinds | {"tokens": encoding}, samples, per_shard=per_shard)
    here.index(directory, tmp_path / "c")
    assert documents_of(tmp_path / "c") == [list(range(size)) for size in sizes]
    path = directory / "shard.00000.mds"
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place : place + 4] = data.draw(st.binary(min_size=4, max_size=4))
    path.write_bytes(content[: path.stat().st_size])
    (tmp_path / "c.idx").unlink()
    (tmp_path / "c.shards").unlink()
    (tmp_path / "c.receipt.json").unlink()
    try:
        here.index(directory, tmp_path / "c")
    except DistcacheError:
        return
    assert here.faults([tmp_path / "c"]) == ()
