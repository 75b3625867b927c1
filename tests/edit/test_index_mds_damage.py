"""What is damaged of an MDS data set, its shards or its index: an error that names it."""

from __future__ import annotations

import json
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distcache.corpus import open_idx
from distcache.corpus.mds.columns import column_type
from distcache.corpus.mds.index_json import CODECS
from distcache.corpus.mds.shard_table import read_table, write_table
from distcache.errors import ConfigError, CorpusError, KeyMismatch
from tests.support import here
from tests.support.mds_corpora import DOCUMENTS, documents_of, fields_of, virtual_bin, write_tokens
from tests.support.mds_writer import write_mds

pytestmark = pytest.mark.wild


def spoil_index(data: Path, change: Any) -> None:
    """Change the `index.json` of a data set."""
    document = json.loads((data / "index.json").read_text())
    change(document)
    (data / "index.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda d: d.update(version=1), "version is 1, expected 2"),
        (lambda d: d["shards"][0].update(more=1), "unknown field"),
        (lambda d: d["shards"][1].update(format="csv"), "shard 1: is csv version 2"),
        (lambda d: d["shards"][1].pop("samples"), "missing required field"),
        (lambda d: d["shards"][0].update(samples=-1), "shards[0].samples"),
        (lambda d: d["shards"][0]["raw_data"].update(basename="../x"), "not a path in the data"),
        (lambda d: d["shards"][0]["raw_data"].update(basename="/etc/x"), "not a path in the data"),
        (lambda d: d["shards"][0].update(compression="lz4"), "without a compressed file"),
        (lambda d: d["shards"][0].update(column_sizes=[]), "not equally many"),
        (lambda d: d["shards"][1].update(raw_data=d["shards"][0]["raw_data"]), "issue 959"),
        (lambda d: d["shards"][0].update(samples=5), "its header says 7 records, the index 5"),
        (lambda d: d["shards"][0]["raw_data"].update(hashes={"xxh64": "0"}), "its xxh64 is"),
        (lambda d: d["shards"][0]["raw_data"].update(hashes={"x": "0"}), "an unknown kind, x"),
        (lambda d: d.update(shards=[]), "data: without a shard"),
        (
            lambda d: d["shards"][1]["raw_data"].update(basename="./shard.00000.mds"),
            "names shard.00000.mds 2 times",
        ),
        (lambda d: d["shards"][0]["raw_data"].update(bytes=2**45), "offsets have 32 bits"),
        (
            lambda d: d["shards"][0].update(column_sizes=[None, None, 4]),
            "the sizes of its columns are",
        ),
    ],
)
def test_faults_of_an_index_are_named(change: Any, expected: str, tmp_path: Path) -> None:
    """Faults of an index are named with the data set and what was expected."""
    data = write_tokens(tmp_path / "data")
    spoil_index(data, change)
    with pytest.raises(CorpusError) as caught:
        here.index(data, tmp_path / "c")
    assert expected in str(caught.value)


def test_faults_of_all_indices_come_together(tmp_path: Path) -> None:
    """Not one after the other, and with the exit code of the first."""
    sets = [write_tokens(tmp_path / name) for name in "ab"]
    for data in sets:
        spoil_index(data, lambda d: d.update(version=3))
    sets.insert(1, tmp_path / "missing")
    with pytest.raises(CorpusError) as caught:
        here.index(sets, tmp_path / "c")
    assert len(caught.value.problems) == 3


def cut(path: Path) -> None:
    """Truncate a file."""
    path.write_bytes(path.read_bytes()[:-10])


def overwrite(path: Path, at: int, data: bytes) -> None:
    """Overwrite bytes of a file."""
    content = bytearray(path.read_bytes())
    content[at : at + len(data)] = data
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda p: p.unlink(), "cannot be read"),
        (lambda p: (p.unlink(), p.mkdir()), "is no regular file"),
        (lambda p: (p.unlink(), os.mkfifo(p)), "is no regular file"),
        (cut, "the index says"),
        (lambda p: overwrite(p, 0, b"\x09"), "its header says 9 records"),
        (lambda p: overwrite(p, 8, b"\xff\xff\xff\x7f"), "its offsets decrease after record 1"),
        (lambda p: overwrite(p, 32, b"\xff\xff\xff\x7f"), "its records end at byte"),
        (lambda p: overwrite(p, 40, b"["), "the description of its columns is damaged"),
    ],
)
@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_faults_of_a_shard_are_named(
    spoil: Any, expected: str, on_error: str, tmp_path: Path
) -> None:
    """Faults of a shard are named, or it is left out, counted and listed, if that is asked for."""
    data = write_tokens(tmp_path / "data")
    spoil(data / "shard.00002.mds")
    if on_error == "fail":
        with pytest.raises(CorpusError) as caught:
            here.index(data, tmp_path / "c")
        assert expected in str(caught.value)
        assert "shard.00002.mds" in str(caught.value)
        return
    receipt = here.index(data, tmp_path / "c", on_error="skip")
    assert receipt.sequences == 33
    assert receipt.inputs[0].skipped == 7
    assert expected in receipt.skipped[0].reason
    left = [document.tolist() for document in DOCUMENTS[:14] + DOCUMENTS[21:]]
    assert documents_of(tmp_path / "c") == left


@pytest.mark.parametrize(
    ("encoding", "values", "options", "expected"),
    [
        ("ndarray:int32", [np.zeros((2, 2), "i4")], {}, "it has 2 dimensions, expected 1"),
        ("ndarray:int32", [b""], {}, "it has no array"),
        ("ndarray:int32", [b"\x04\x09\x00\x00\x00\x00"], {}, "9 tokens are not 4 bytes"),
        ("ndarray:int32", [b"\x05"], {}, "too few for a shape"),
        ("ndarray", [np.zeros(3, "i4"), np.zeros(3, "u2")], {}, "its type is <u2"),
        ("ndarray", [np.zeros(3, "f4")], {}, "its type is <f4"),
        ("ndarray:uint32", [np.array([1, 2**31], "u4")], {}, f"token {2**31} is not below"),
        ("ndarray:int32", [np.array([1, 70], "i4")], {"vocabulary": 70}, "is not below 70"),
        ("ndarray:int32", [np.array([1, -7], "i4")], {"vocabulary": 70}, "token -7"),
        ("bytes", [b"abc"], {"dtype": "int32"}, "3 bytes are no int32"),
    ],
)
def test_faults_of_records_are_named(
    encoding: str, values: list[Any], options: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    """Faults of records are named, or they alone are left out."""
    good = [np.arange(3, dtype="i4"), np.arange(5, dtype="i4")]
    if encoding != "ndarray:int32":
        good = [value.astype(encoding.partition(":")[2] or "i4") for value in good]
    shown = [value.tobytes() if encoding == "bytes" else value for value in good]
    samples = [{"tokens": value} for value in [shown[0], *values, shown[1]]]
    data = write_mds(tmp_path / "data", {"tokens": encoding}, samples)
    with pytest.raises(CorpusError) as caught:
        here.index(data, tmp_path / "c", **options)
    assert expected in str(caught.value)
    receipt = here.index(data, tmp_path / "c", **options, on_error="skip")
    wrong = len(samples) - receipt.sequences
    assert receipt.inputs[0].skipped == wrong == len(receipt.skipped) > 0
    assert documents_of(tmp_path / "c")[-1] == [0, 1, 2, 3, 4]


def test_tokens_that_are_no_integers(tmp_path: Path) -> None:
    """They are refused with the shard, where its first record says the type."""
    samples = [{"tokens": np.zeros(3, "f4")}] * 2
    data = write_mds(tmp_path / "data", {"tokens": "ndarray"}, samples)
    with pytest.raises(CorpusError, match=r"shard\.00000\.mds: its tokens are float32"):
        here.index(data, tmp_path / "c")


@pytest.mark.parametrize(
    ("columns", "options", "expected"),
    [
        ({"x": "ndarray:int32"}, {}, "the columns are x"),
        ({"tokens": "pkl"}, {}, "is pkl, expected an ndarray of one dimension, or bytes"),
        ({"tokens": "ndarray:float32"}, {}, "expected integers"),
        ({"tokens": "ndarray:int32:2,2"}, {}, "expected an ndarray of one dimension"),
        ({"tokens": "ndarray:int32"}, {"dtype": "int64"}, "--dtype int64: the column is"),
        ({"tokens": "bytes"}, {"dtype": "float32"}, "expected a type of integers"),
    ],
)
def test_columns_that_hold_no_tokens(
    columns: dict[str, str], options: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    """Columns that hold no tokens are refused before any shard is read."""
    samples = [dict.fromkeys(columns, b"\0" * 16)]
    data = write_mds(tmp_path / "data", columns, samples)
    with pytest.raises(ConfigError, match=expected):
        here.index(data, tmp_path / "c", **options)


def test_shards_that_are_gone_are_faults(tmp_path: Path) -> None:
    """Of the corpus, before anything is built from it; unless there is a `.bin`."""
    data = write_tokens(tmp_path / "data", codec="zstd")
    here.index(data, tmp_path / "c")
    (data / "shard.00001.mds.zstd").write_bytes(b"short")
    (data / "shard.00004.mds.zstd").rename(tmp_path / "away")
    faults = here.faults([tmp_path / "c"])
    text = "; ".join(map(str, faults))
    assert f"{data}/shard.00001.mds.zstd: has 5 bytes, and had" in text
    assert "(1 more shards are gone or changed)" in text
    with pytest.raises(CorpusError, match=r"shard\.00001"):
        here.build(fields_of(str(tmp_path / "c")), tmp_path / "caches")
    (tmp_path / "c.bin").write_bytes(bytes(read_table(str(tmp_path / "c")).bin_size))
    assert not here.faults([tmp_path / "c"])


def test_shards_that_were_written_to_are_not_taken_for_those_indexed(tmp_path: Path) -> None:
    """By a second run, although their `index.json` is the same."""
    data = write_tokens(tmp_path / "data")
    here.index(data, tmp_path / "c")
    here.index(data, tmp_path / "c")
    later = (tmp_path / "c.shards").stat().st_mtime_ns + 10**9
    os.utime(data / "shard.00002.mds", ns=(later, later))
    with pytest.raises(KeyMismatch, match=r"shard\.00002\.mds: was written to after"):
        here.index(data, tmp_path / "c")


def test_a_damaged_table_is_one_fault(tmp_path: Path) -> None:
    """And the index beside it none; made again, it is not said to differ in anything."""
    data = write_tokens(tmp_path / "data")
    here.index(data, tmp_path / "c")
    content = bytearray((tmp_path / "c.shards").read_bytes())
    content[300] ^= 1
    (tmp_path / "c.shards").write_bytes(content)
    faults = here.faults([tmp_path / "c"])
    assert [fault.path for fault in faults] == [f"{tmp_path}/c.shards"]
    with pytest.raises(KeyMismatch, match="its files are damaged, or some are missing"):
        here.index(data, tmp_path / "c")


@pytest.mark.parametrize("length", ["\u00b2", "1" * 5000, "-1", "2,3", ""])
def test_a_length_of_tokens_that_is_none(length: str, tmp_path: Path) -> None:
    """A length of tokens that is none is an encoding without tokens."""
    assert column_type(f"ndarray:int32:{length}") is None


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["shards", "idx"])
def test_every_byte_of_an_index_flipped(suffix: str, tmp_path: Path) -> None:
    """A fault, or a corpus whose sequences lie within its shards."""
    data = write_tokens(tmp_path / "data")
    here.index(data, tmp_path / "c")
    path = tmp_path / f"c.{suffix}"
    original, choose = path.read_bytes(), random.Random(4)
    ends = virtual_bin(tmp_path / "c").size
    places = range(len(original)) if suffix == "shards" else range(0, len(original), 3)
    for place in places:
        mutated = bytearray(original)
        mutated[place] ^= 1 << choose.randrange(8)
        path.write_bytes(mutated)
        facts, faults = here.examine([tmp_path / "c"])
        if not faults:
            assert suffix == "idx"
            idx = open_idx(str(tmp_path / "c"))
            assert (idx.offsets + 4 * idx.lengths.astype(np.int64)).max() <= ends
            assert facts[str(tmp_path / "c")].view


@pytest.mark.parametrize(
    "columns",
    [
        b"[]",
        b"{",
        b"\xff",
        b'{"column_names":["a","a"],"column_encodings":["str","str"],"column_sizes":[null,null]}',
        b'{"column_names":["a"],"column_encodings":[],"column_sizes":[null]}',
        b'{"column_names":["a"],"column_encodings":["str"],"column_sizes":[-1]}',
    ],
)
def test_a_table_whose_columns_make_no_sense(columns: bytes, tmp_path: Path) -> None:
    """It is damaged, although its digests are right."""
    write_tokens(tmp_path / "data")
    here.index(tmp_path / "data", tmp_path / "c", column="")
    table = read_table(str(tmp_path / "c"))
    write_table(str(tmp_path / "c"), replace(table, columns=columns))
    with pytest.raises(CorpusError, match=r"c\.shards: the description of its columns is damaged"):
        read_table(str(tmp_path / "c"))


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("share", range(8))
@pytest.mark.parametrize("codec", CODECS)
def test_every_byte_of_a_shard_flipped_or_cut(codec: str, share: int, tmp_path: Path) -> None:
    """An error, or the same samples where the damage is in bytes that nothing reads."""
    samples = [{"tokens": np.arange(n, n + 9, dtype="i4"), "z": n} for n in range(6)]
    columns = {"tokens": "ndarray:int32", "z": "int"}
    data = write_mds(tmp_path / "data", columns, samples, codec=codec, hashes=["xxh64"])
    path = next(path for path in data.iterdir() if path.name.startswith("shard"))
    original, choose = path.read_bytes(), random.Random(5)
    for place in range(share, len(original), 8):
        mutated = bytearray(original)
        mutated[place] ^= 1 << choose.randrange(8)
        for content in (bytes(mutated), original[:place]):
            path.write_bytes(content)
            with pytest.raises(CorpusError):
                here.index(data, tmp_path / "c")
    shutil.rmtree(tmp_path / ".c.ingest", ignore_errors=True)
