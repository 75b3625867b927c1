"""MDS data sets as corpora: indexed with every check, converted by nobody."""

from __future__ import annotations

import json
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from distcache.corpus import open_idx
from distcache.corpus.examine import examine, require_sound
from distcache.corpus.mds.columns import column_type
from distcache.corpus.mds.index_json import CODECS
from distcache.corpus.mds.shard_table import ALIGNMENT, read_table, write_table
from distcache.corpus.mds.stored_shard import StoredShard, raw_pieces
from distcache.corpus.receipt import Receipt, read_receipt
from distcache.edit import index_mds as module
from distcache.edit import mds_records as mds_numbers
from distcache.edit.index_mds import index_mds
from distcache.edit.mds_scan import MdsOptions
from distcache.errors import ConfigError, CorpusError, DistcacheError, KeyMismatch, NotReady
from distcache.ranks.communicator import Communicator, SerialCommunicator
from tests.support.caches import build_here
from tests.support.mds_writer import write_mds
from tests.support.threads import run_ranks

ALONE = SerialCommunicator()
RNG = np.random.default_rng(20261123)
DOCUMENTS = [RNG.integers(0, 60_000, size) for size in RNG.integers(1, 400, 40)]


def write_tokens(
    directory: Path, encoding: str = "ndarray:int32", dtype: str = "int32", **options: Any
) -> Path:
    """Write `DOCUMENTS` as a data set with a column before the tokens and one behind them."""
    samples = []
    for number, document in enumerate(DOCUMENTS):
        tokens = document.astype(dtype)
        value = tokens.tobytes() if encoding == "bytes" else tokens
        samples.append({"a": "x" * (number % 5), "tokens": value, "z": number})
    columns = {"a": "str", "tokens": encoding, "z": "int"}
    return write_mds(directory, columns, samples, **options)


def index(directory: Path | list[Path], out: Path, **options: Any) -> Receipt:
    """Index with one rank."""
    some = directory if isinstance(directory, list) else [directory]
    return index_mds(ALONE, list(map(str, some)), str(out), MdsOptions(**options))


def fields_of(*prefixes: str) -> dict[str, Any]:
    """Return a configuration with several epochs and three splits."""
    blend: list[Any] = [{"path": prefix, "weight": n + 1.0} for n, prefix in enumerate(prefixes)]
    return {
        "sequence_length": 64,
        "seed": 3,
        "samples": {"train": 300, "valid": 20, "test": 10},
        "split": "80,15,5",
        "blend": blend,
    }


def virtual_bin(prefix: str | Path) -> NDArray[np.uint8]:
    """Return the `.bin` that the shards of a corpus make up."""
    table = read_table(str(prefix))
    content = np.zeros(table.bin_size, np.uint8)
    for shard, row in enumerate(table.rows):
        assert int(row["base"]) % ALIGNMENT == 0
        path, codec = table.path_of(shard), CODECS[int(row["codec"])]
        size = Path(path).stat().st_size
        stored = StoredShard(path, codec, size, int(row["raw_size"]))
        raw = np.concatenate(list(raw_pieces(stored, lambda _: None)))
        content[int(row["base"]) : int(row["base"]) + len(raw)] = raw
    return content


def documents_of(prefix: str | Path) -> list[list[int]]:
    """Read every sequence of a corpus of shards."""
    idx, content = open_idx(str(prefix)), virtual_bin(prefix)
    dtype = {1: "u1", 4: "<i4", 5: "<i8", 8: "<u2"}[idx.type_code]
    return [
        content[at : at + n * idx.item_size].view(dtype).tolist()
        for at, n in zip(idx.offsets.tolist(), idx.lengths.tolist(), strict=True)
    ]


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
    """Lie where the index says, and are those of every document, in order."""
    data = write_tokens(tmp_path / "data", encoding, dtype, codec=codec, hashes=["xxh64"])
    receipt = index(data, tmp_path / "c", dtype=stated, vocabulary=60_000)
    assert documents_of(tmp_path / "c") == [document.tolist() for document in DOCUMENTS]
    facts = require_sound(ALONE, [str(tmp_path / "c")], 1)[str(tmp_path / "c")]
    assert facts.view
    assert facts.shards is not None
    assert facts.tokens == receipt.tokens == sum(map(len, DOCUMENTS))
    assert (receipt.kind, receipt.bin_size) == ("mds", len(virtual_bin(tmp_path / "c")))
    assert receipt.inputs[0].rows == 40
    assert not (tmp_path / "c.bin").exists()
    assert read_receipt(tmp_path / "c.receipt.json") == receipt
    assert index(data, tmp_path / "c", dtype=stated, vocabulary=60_000) == receipt


@pytest.mark.parametrize("ranks", [2, 3, 7])
def test_the_number_of_ranks_changes_no_byte(ranks: int, tmp_path: Path) -> None:
    """Of several data sets of different numbers of shards and compressions."""
    sets = [
        write_tokens(tmp_path / "a", per_shard=3),
        write_tokens(tmp_path / "b", codec="zstd"),
        write_tokens(tmp_path / "c", per_shard=40),
    ]
    directories = list(map(str, sets))

    def make(communicator: Communicator) -> None:
        out = str(tmp_path / f"out{communicator.size}")
        index_mds(communicator, directories, out, MdsOptions(), 2)

    make(ALONE)
    outcomes, aborted = run_ranks(ranks, make)
    assert (outcomes, aborted) == ([None] * ranks, [])
    for suffix in ("idx", "shards", "receipt.json"):
        one, several = (tmp_path / f"out{size}.{suffix}" for size in (1, ranks))
        if suffix == "receipt.json":
            known = [json.loads(path.read_text()) | {"corpus": ""} for path in (one, several)]
            assert known[0] == known[1]
        else:
            assert one.read_bytes() == several.read_bytes()
    assert documents_of(tmp_path / "out1") == [d.tolist() for d in DOCUMENTS] * 3


@pytest.mark.parametrize("at_once", [1, 7, 39])
def test_the_numbers_of_few_sequences_at_a_time(
    at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Give the same index, however many are in memory."""
    data = write_tokens(tmp_path / "data", per_shard=3)
    index(data, tmp_path / "all")
    monkeypatch.setattr(mds_numbers, "AT_ONCE", at_once)
    index(data, tmp_path / "few")
    assert (tmp_path / "few.idx").read_bytes() == (tmp_path / "all.idx").read_bytes()


def test_headers_only(tmp_path: Path) -> None:
    """Give the same index where sizes say all, and are refused where they do not."""
    for name, codec in (("raw", ""), ("packed", "zstd"), ("bz2", "bz2")):
        samples = [{"tokens": document.astype("u2")} for document in [*DOCUMENTS, DOCUMENTS[0][:0]]]
        data = write_mds(tmp_path / name, {"tokens": "ndarray:uint16"}, samples, codec=codec)
        index(data, tmp_path / f"{name}-whole")
        receipt = index(data, tmp_path / f"{name}-fast", headers_only=True)
        pairs = [(tmp_path / f"{name}-{kind}.idx").read_bytes() for kind in ("whole", "fast")]
        assert pairs[0] == pairs[1]
        assert receipt.options["headers_only"]
    with pytest.raises(ConfigError, match="another column varies"):
        index(write_tokens(tmp_path / "more"), tmp_path / "no", headers_only=True)
    samples = [{"tokens": document.astype("u1")} for document in DOCUMENTS]
    typed = write_mds(tmp_path / "typed", {"tokens": "ndarray"}, samples)
    with pytest.raises(ConfigError, match="or the type stands in each sample"):
        index(typed, tmp_path / "no", headers_only=True, dtype="uint8")


def test_a_shard_of_one_sample(tmp_path: Path) -> None:
    """Its tokens lie at any byte, and are compared all the same."""
    data = write_tokens(tmp_path / "data", per_shard=1)
    index(data, tmp_path / "c", vocabulary=60_000)
    assert documents_of(tmp_path / "c") == [document.tolist() for document in DOCUMENTS]


def test_rows_are_whole_samples(tmp_path: Path) -> None:
    """Of any columns, which the table describes; each has its bytes."""
    samples = [{"audio": bytes(range(n)), "text": "é" * n, "n": n} for n in range(20)]
    columns = {"audio": "bytes", "text": "str", "n": "int"}
    data = write_mds(tmp_path / "data", columns, samples, codec="gz")
    for headers_only in (False, True):
        out = tmp_path / f"c{headers_only}"
        index(data, out, column="", headers_only=headers_only)
        found = documents_of(out)
        assert [len(row) for row in found] == [16 + n + 2 * n for n in range(20)]
        described = msgspec.json.decode(read_table(str(out)).columns)
        assert described["column_names"] == ["audio", "n", "text"]
    other = write_mds(tmp_path / "other", {"n": "int"}, [{"n": 1}])
    with pytest.raises(ConfigError, match="one set of columns"):
        index([data, other], tmp_path / "both", column="")


def test_a_split_is_a_subdirectory(tmp_path: Path) -> None:
    """Without it, the message says which ones there are."""
    write_tokens(tmp_path / "data" / "train")
    write_tokens(tmp_path / "data" / "val")
    index(tmp_path / "data", tmp_path / "c", split="train")
    with pytest.raises(NotReady, match="its subdirectories train, val have one"):
        index(tmp_path / "data", tmp_path / "d")
    with pytest.raises(ConfigError, match="expected the name of a subdirectory"):
        index(tmp_path / "data", tmp_path / "d", split="../x")


def test_a_path_that_leads_back_from_a_link(tmp_path: Path) -> None:
    """Is the place that the filesystem says."""
    write_tokens(tmp_path / "far" / "data")
    (tmp_path / "far" / "inner").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "far" / "inner")
    index(tmp_path / "link" / ".." / "data", tmp_path / "c")
    assert read_table(str(tmp_path / "c")).path_of(0).startswith(f"{tmp_path}/far/data/")


def test_raw_shards_beside_compressed_ones_are_taken(tmp_path: Path) -> None:
    """Nothing has to be unpacked then; one of another length is none."""
    data = write_tokens(tmp_path / "data", codec="zstd", keep_raw=True)
    index(data, tmp_path / "c")
    assert not read_table(str(tmp_path / "c")).rows["codec"].any()
    (data / "shard.00002.mds").write_bytes(b"short")
    index(data, tmp_path / "d")
    assert read_table(str(tmp_path / "d")).rows["codec"].tolist() == [0, 0, 1, 0, 0, 0]


def test_the_source_is_only_read(tmp_path: Path) -> None:
    """Nothing is written beside the shards."""
    data = write_tokens(tmp_path / "data", codec="zstd")
    before = sorted((path, path.stat().st_mtime_ns) for path in data.iterdir())
    for path in [*data.iterdir(), data]:
        path.chmod(0o555 if path == data else 0o444)
    index(data, tmp_path / "c")
    assert sorted((path, path.stat().st_mtime_ns) for path in data.iterdir()) == before


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
        (lambda d: d["shards"][0].update(samples=5), "its header says 7 samples, the index 5"),
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
    """With the data set and what was expected."""
    data = write_tokens(tmp_path / "data")
    spoil_index(data, change)
    with pytest.raises(CorpusError) as caught:
        index(data, tmp_path / "c")
    assert expected in str(caught.value)


def test_faults_of_all_indices_come_together(tmp_path: Path) -> None:
    """Not one after the other, and with the exit code of the first."""
    sets = [write_tokens(tmp_path / name) for name in "ab"]
    for data in sets:
        spoil_index(data, lambda d: d.update(version=3))
    sets.insert(1, tmp_path / "missing")
    with pytest.raises(CorpusError) as caught:
        index(sets, tmp_path / "c")
    assert len(caught.value.problems) == 3


def test_a_damaged_shard_of_bytes_whose_type_is_not_said(tmp_path: Path) -> None:
    """Is a damaged shard."""
    data = write_tokens(tmp_path / "data", "bytes")
    overwrite(data / "shard.00000.mds", 8, b"\xff\xff\xff\x7f")
    with pytest.raises(CorpusError, match="its offsets fall"):
        index(data, tmp_path / "c")


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
        (lambda p: overwrite(p, 0, b"\x09"), "its header says 9 samples"),
        (lambda p: overwrite(p, 8, b"\xff\xff\xff\x7f"), "its offsets fall behind sample 1"),
        (lambda p: overwrite(p, 32, b"\xff\xff\xff\x7f"), "its samples end at byte"),
        (lambda p: overwrite(p, 40, b"["), "the description of its columns is damaged"),
    ],
)
@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_faults_of_a_shard_are_named(
    spoil: Any, expected: str, on_error: str, tmp_path: Path
) -> None:
    """Or it is left out, counted and listed, if that is asked for."""
    data = write_tokens(tmp_path / "data")
    spoil(data / "shard.00002.mds")
    if on_error == "fail":
        with pytest.raises(CorpusError) as caught:
            index(data, tmp_path / "c")
        assert expected in str(caught.value)
        assert "shard.00002.mds" in str(caught.value)
        return
    receipt = index(data, tmp_path / "c", on_error="skip")
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
def test_faults_of_samples_are_named(
    encoding: str, values: list[Any], options: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    """Or they alone are left out."""
    good = [np.arange(3, dtype="i4"), np.arange(5, dtype="i4")]
    if encoding != "ndarray:int32":
        good = [value.astype(encoding.partition(":")[2] or "i4") for value in good]
    shown = [value.tobytes() if encoding == "bytes" else value for value in good]
    samples = [{"tokens": value} for value in [shown[0], *values, shown[1]]]
    data = write_mds(tmp_path / "data", {"tokens": encoding}, samples)
    with pytest.raises(CorpusError) as caught:
        index(data, tmp_path / "c", **options)
    assert expected in str(caught.value)
    receipt = index(data, tmp_path / "c", **options, on_error="skip")
    wrong = len(samples) - receipt.sequences
    assert receipt.inputs[0].skipped == wrong == len(receipt.skipped) > 0
    assert documents_of(tmp_path / "c")[-1] == [0, 1, 2, 3, 4]


def test_tokens_that_are_no_integers(tmp_path: Path) -> None:
    """Are refused with the shard, where its first sample says the type."""
    samples = [{"tokens": np.zeros(3, "f4")}] * 2
    data = write_mds(tmp_path / "data", {"tokens": "ndarray"}, samples)
    with pytest.raises(CorpusError, match=r"shard\.00000\.mds: its tokens are float32"):
        index(data, tmp_path / "c")


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
    """Are refused before any shard is read."""
    samples = [dict.fromkeys(columns, b"\0" * 16)]
    data = write_mds(tmp_path / "data", columns, samples)
    with pytest.raises(ConfigError, match=expected):
        index(data, tmp_path / "c", **options)


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint16"])
def test_bytes_whose_type_is_not_said(dtype: str, tmp_path: Path) -> None:
    """Are refused with what they look like."""
    data = write_tokens(tmp_path / "data", "bytes", dtype, codec="zstd")
    with pytest.raises(ConfigError, match=f"give --dtype; they look like {dtype}"):
        index(data, tmp_path / "c")


def test_empty_samples_are_sequences_without_tokens(tmp_path: Path) -> None:
    """They are counted."""
    values = [b"", np.arange(3, dtype="i4").tobytes(), b""]
    data = write_mds(tmp_path / "d", {"tokens": "bytes"}, [{"tokens": v} for v in values])
    receipt = index(data, tmp_path / "c", dtype="int32")
    assert documents_of(tmp_path / "c") == [[], [0, 1, 2], []]
    assert receipt.inputs[0].empty == 2


def test_a_killed_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is journaled is not read again, unless it was written to."""
    data = write_tokens(tmp_path / "data", codec="zstd")
    seen: list[str] = []
    true = module.scan_shard

    def scan(stored: Any, *words: Any) -> Any:
        if len(seen) == 4:
            raise KeyboardInterrupt
        seen.append(Path(stored.path).name)
        return true(stored, *words)

    monkeypatch.setattr(module, "scan_shard", scan)
    with pytest.raises(KeyboardInterrupt):
        index(data, tmp_path / "c")
    first, seen[:] = list(seen), []
    monkeypatch.setattr(module, "scan_shard", lambda *w: (seen.append(w[0].path), true(*w))[1])
    touched = data / first[1]
    touched.write_bytes(touched.read_bytes())
    index(data, tmp_path / "c")
    names = [Path(path).name for path in seen]
    assert set(names) == {path.name for path in data.glob("*.zstd")} - set(first) | {first[1]}
    assert documents_of(tmp_path / "c") == [document.tolist() for document in DOCUMENTS]
    assert not list(tmp_path.glob(".c*"))


def test_other_options_do_not_take_the_name(tmp_path: Path) -> None:
    """Nor does another data set."""
    data = write_tokens(tmp_path / "data")
    index(data, tmp_path / "c")
    with pytest.raises(KeyMismatch, match="differs in vocabulary"):
        index(data, tmp_path / "c", vocabulary=70_000)


def test_shards_that_are_gone_are_faults(tmp_path: Path) -> None:
    """Of the corpus, before anything is built from it; unless there is a `.bin`."""
    data = write_tokens(tmp_path / "data", codec="zstd")
    index(data, tmp_path / "c")
    (data / "shard.00001.mds.zstd").write_bytes(b"short")
    (data / "shard.00004.mds.zstd").rename(tmp_path / "away")
    _, faults = examine(ALONE, [str(tmp_path / "c")], 1)
    text = "; ".join(map(str, faults))
    assert f"{data}/shard.00001.mds.zstd: has 5 bytes, and had" in text
    assert "(1 more shards are gone or changed)" in text
    with pytest.raises(CorpusError, match=r"shard\.00001"):
        build_here(fields_of(str(tmp_path / "c")), tmp_path / "caches")
    (tmp_path / "c.bin").write_bytes(bytes(read_table(str(tmp_path / "c")).bin_size))
    assert not examine(ALONE, [str(tmp_path / "c")], 1)[1]


def test_shards_that_were_written_to_are_not_taken_for_those_indexed(tmp_path: Path) -> None:
    """By a second run, although their `index.json` is the same."""
    data = write_tokens(tmp_path / "data")
    index(data, tmp_path / "c")
    index(data, tmp_path / "c")
    later = (tmp_path / "c.shards").stat().st_mtime_ns + 10**9
    os.utime(data / "shard.00002.mds", ns=(later, later))
    with pytest.raises(KeyMismatch, match=r"shard\.00002\.mds: was written to after"):
        index(data, tmp_path / "c")


def test_a_damaged_table_is_one_fault(tmp_path: Path) -> None:
    """And the index beside it none; made again, it is not said to differ in anything."""
    data = write_tokens(tmp_path / "data")
    index(data, tmp_path / "c")
    content = bytearray((tmp_path / "c.shards").read_bytes())
    content[300] ^= 1
    (tmp_path / "c.shards").write_bytes(content)
    _, faults = examine(ALONE, [str(tmp_path / "c")], 1)
    assert [fault.path for fault in faults] == [f"{tmp_path}/c.shards"]
    with pytest.raises(KeyMismatch, match="its files are damaged, or some are missing"):
        index(data, tmp_path / "c")


@pytest.mark.parametrize("length", ["\u00b2", "1" * 5000, "-1", "2,3", ""])
def test_a_length_of_tokens_that_is_none(length: str, tmp_path: Path) -> None:
    """Is an encoding without tokens."""
    assert column_type(f"ndarray:int32:{length}") is None


def test_moving_and_compressing_keep_the_identity(tmp_path: Path) -> None:
    """Other bytes lose it."""
    digests = []
    for name, codec in (("a", "zstd"), ("b", "zstd")):
        data = write_tokens(tmp_path / name, codec=codec, keep_raw=name == "b")
        index(data, tmp_path / f"c-{name}")
        facts = require_sound(ALONE, [str(tmp_path / f"c-{name}")], 1)
        digests.append(facts[str(tmp_path / f"c-{name}")].identity)
    assert digests[0] == digests[1]
    content = (data / "shard.00000.mds").read_bytes()
    (data / "shard.00000.mds").write_bytes(content[:-8] + b"\x01" * 8)  # of the last column
    index(data, tmp_path / "c-c")
    facts = require_sound(ALONE, [str(tmp_path / "c-c")], 1)
    assert facts[str(tmp_path / "c-c")].identity != digests[0]


@pytest.mark.long
@pytest.mark.parametrize("suffix", ["shards", "idx"])
def test_every_byte_of_an_index_flipped(suffix: str, tmp_path: Path) -> None:
    """A fault, or a corpus whose sequences lie within its shards."""
    data = write_tokens(tmp_path / "data")
    index(data, tmp_path / "c")
    path = tmp_path / f"c.{suffix}"
    original, choose = path.read_bytes(), random.Random(4)
    ends = virtual_bin(tmp_path / "c").size
    places = range(len(original)) if suffix == "shards" else range(0, len(original), 3)
    for place in places:
        mutated = bytearray(original)
        mutated[place] ^= 1 << choose.randrange(8)
        path.write_bytes(mutated)
        facts, faults = examine(ALONE, [str(tmp_path / "c")], 1)
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
    """Is damaged, although its digests are right."""
    write_tokens(tmp_path / "data")
    index(tmp_path / "data", tmp_path / "c", column="")
    table = read_table(str(tmp_path / "c"))
    write_table(str(tmp_path / "c"), replace(table, columns=columns))
    with pytest.raises(CorpusError, match=r"c\.shards: the description of its columns is damaged"):
        read_table(str(tmp_path / "c"))


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("codec", CODECS)
def test_every_byte_of_a_shard_flipped_or_cut(codec: str, tmp_path: Path) -> None:
    """An error, or the same samples where the damage is in bytes that nothing reads."""
    samples = [{"tokens": np.arange(n, n + 9, dtype="i4"), "z": n} for n in range(6)]
    columns = {"tokens": "ndarray:int32", "z": "int"}
    data = write_mds(tmp_path / "data", columns, samples, codec=codec, hashes=["xxh64"])
    path = next(path for path in data.iterdir() if path.name.startswith("shard"))
    original, choose = path.read_bytes(), random.Random(5)
    for place in range(len(original)):
        mutated = bytearray(original)
        mutated[place] ^= 1 << choose.randrange(8)
        for content in (bytes(mutated), original[:place]):
            path.write_bytes(content)
            with pytest.raises(CorpusError):
                index(data, tmp_path / "c")
    shutil.rmtree(tmp_path / ".c.ingest", ignore_errors=True)


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
    index(directory, tmp_path / "c")
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
        index(directory, tmp_path / "c")
    except DistcacheError:
        return
    assert examine(ALONE, [str(tmp_path / "c")], 1)[1] == ()
