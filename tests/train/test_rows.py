"""Rows: records of several columns, as streaming's writer gave them, in passes."""

from __future__ import annotations

import decimal
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import distcache
from distcache.corpus.mds.index_json import Columns
from distcache.corpus.mds.row import Row, decode_value
from distcache.errors import ConfigError, CorpusError
from tests.node.agents import run
from tests.support import here
from tests.support.mds_corpora import write_tokens
from tests.support.mds_writer import encode, write_mds

pytestmark = pytest.mark.wild

KINDS = {"audio": "bytes", "text": "str", "n": "int", "tags": "json", "mel": "ndarray:float32"}


def sample(n: int, name: str) -> dict[str, Any]:
    """Return a sample of every kind."""
    mel = np.arange(2 * (n % 5 + 1), dtype="f4").reshape(2, -1)
    audio = bytes(range(n % 200))
    return {"audio": audio, "text": f"é {name} {n}", "n": n, "tags": {"of": [name]}, "mel": mel}


def write_rows(tmp_path: Path, name: str, count: int = 60, codec: str = "") -> str:
    """Write and index a data set of rows, and return the prefix of the corpus."""
    samples = [sample(n, name) for n in range(count)]
    here.index(
        write_mds(tmp_path / f"{name}-mds", KINDS, samples, codec=codec), tmp_path / name, column=""
    )
    return str(tmp_path / name)


def fields_of(*prefixes: str, **more: Any) -> dict[str, Any]:
    """Return a configuration of rows."""
    blend = [{"path": prefix, "weight": n + 1.0} for n, prefix in enumerate(prefixes)]
    samples = {"train": 300, "valid": 0, "test": 0}
    return {
        "sequence_length": 1,
        "shuffle": "passes",
        "split": "1",
        "samples": samples,
        "blend": blend,
    } | more


@pytest.mark.parametrize("codec", ["", "zstd"])
def test_rows_are_what_was_written(codec: str, tmp_path: Path) -> None:
    """Rows are what was written of every kind of column; compressed ones from the node's copy."""
    names = ["speech", "music"]
    prefixes = [write_rows(tmp_path, name, codec=codec) for name in names]
    built = here.build(fields_of(*prefixes), tmp_path / "caches")
    local = None
    if codec:
        local = tmp_path / "local"
        run(Path(built.path), local)
    rows = distcache.open(built.path, local=local).rows("train")
    assert len(rows) >= 300
    assert repr(rows) == f"<split 'train': {len(rows)} rows>"
    seen: dict[str, list[int]] = {name: [] for name in names}
    for i in range(len(rows)):
        row = rows[i]
        name = names[rows.dataset_of(i)]
        expected = sample(row["n"], name)
        assert list(row) == sorted(expected)
        for column in ("audio", "text", "n", "tags"):
            assert row[column] == expected[column]
        assert row["mel"].tolist() == expected["mel"].tolist()
        seen[name].append(row["n"])
    for numbers in seen.values():  # no row twice before all have come once
        for begin in range(0, len(numbers) - 59, 60):
            assert sorted(numbers[begin : begin + 60]) == list(range(60))
    share = np.cumsum([rows.dataset_of(i) == 1 for i in range(len(rows))])
    steps = np.arange(1, len(rows) + 1)
    assert np.abs(share - steps * 2 / 3).max() <= 1


def count_of(row: Row) -> tuple[int, int]:
    """What a user might do with a row in a worker."""
    return row["n"], len(row["audio"])


def test_a_loader_maps_rows_in_its_workers(tmp_path: Path) -> None:
    """And puts them together as the user says; a state of the sampler goes on exactly."""
    built = here.build(fields_of(write_rows(tmp_path, "speech")), tmp_path / "caches")
    rows = distcache.open(built.path).rows("train", map=count_of)
    expected = [rows[i] for i in range(len(rows))]
    assert pickle.loads(pickle.dumps(rows))[3] == expected[3]
    sampler = distcache.ResumableSampler(rows, 4, 0, 2)
    loader = DataLoader(rows, batch_sampler=sampler, num_workers=2, collate_fn=list)
    found = list(loader)
    assert found[0] == expected[0:4]
    assert found[1] == expected[8:12]
    assert rows.__getitems__([1, None, 0]) == [expected[1], None, expected[0]]
    resumed = distcache.ResumableSampler(rows, 4, 0, 2, consumed_samples=8)
    assert next(iter(DataLoader(rows, batch_sampler=resumed, collate_fn=list))) == found[1]


def test_rows_and_tokens_are_not_confused(tmp_path: Path) -> None:
    """The message says how to open the other."""
    cache = distcache.open(
        here.build(fields_of(write_rows(tmp_path, "speech")), tmp_path / "caches").path
    )
    with pytest.raises(ConfigError, match=r"open it with cache\.rows"):
        cache.dataset("train")[0]
    with pytest.raises(ConfigError, match="has splits train"):
        cache.rows("test")
    with pytest.raises(IndexError):
        cache.rows("train")[10**6]
    here.index(write_tokens(tmp_path / "tokens"), tmp_path / "t")
    other = {"sequence_length": 8, "split": "1", "blend": [str(tmp_path / "t")]}
    tokens = distcache.open(here.build(other, tmp_path / "caches").path)
    with pytest.raises(ConfigError, match=r"open it with cache\.dataset"):
        tokens.rows("train")[0]


@pytest.mark.parametrize(
    ("encoding", "value"),
    [
        ("bytes", b"\x00\xff"),
        ("str", "é"),
        ("int", -7),
        ("uint8", 200),
        ("uint64", 2**63 + 1),
        ("float16", 0.5),
        ("float64", 0.1),
        ("json", {"a": [1, None]}),
        ("jpeg", b"\xff\xd8"),
        ("ndarray:int16", [[1, 2], [3, -4]]),
        ("ndarray:uint8:2,3", [[1, 2, 3], [4, 5, 6]]),
        ("ndarray", [1, 2, 2**40]),
    ],
)
def test_values_of_every_encoding(encoding: str, value: Any) -> None:
    """They come back as Python's, or NumPy's where they are arrays."""
    if encoding in ("uint64", "float16", "float64"):
        data = np.array(value, encoding).tobytes()
    elif encoding == "jpeg":
        data = value
    else:
        data = encode(encoding, value)
    found = decode_value(encoding, data)
    if isinstance(found, np.ndarray):
        found = found.tolist()
    assert found == value
    assert type(found) is type(value)


def test_numbers_in_text() -> None:
    """As streaming's ``str_int``, ``str_float`` and ``str_decimal``."""
    assert (
        decode_value("str_int", b"123456789012345678901234567890") == 123456789012345678901234567890
    )
    assert decode_value("str_float", b"0.25") == 0.25
    assert decode_value("str_decimal", b"1.10") == decimal.Decimal("1.10")


def test_a_pickle_is_never_decoded() -> None:
    """It is an error that says so, whatever it holds."""
    row = Row(Columns(("x",), ("pkl",), (None,)), b"\x04\x00\x00\x00abcd", "here")
    with pytest.raises(ConfigError, match="never decoded"):
        row["x"]


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("int", b"1"),
        ("str", b"\xff"),
        ("json", b"{"),
        ("str_int", b"x"),
        ("ndarray:int32", b""),
        ("ndarray:int32", b"\x04"),
        ("ndarray:int32", b"\x04\x09ab"),
        ("ndarray", b"\x07\x04\x01ab"),
        ("ndarray:int32:3", b"ab"),
    ],
)
def test_values_that_are_not_what_their_encoding_says(encoding: str, data: bytes) -> None:
    """Values that are not what their encoding says are errors with the place, and no crash."""
    size = np.uint32(len(data)).tobytes()
    row = Row(Columns(("x",), (encoding,), (None,)), size + data, "shard 3, byte 9")
    with pytest.raises(CorpusError, match="shard 3, byte 9: column x is no"):
        row["x"]
    with pytest.raises(CorpusError, match="shard 3, byte 9: its columns take"):
        Row(Columns(("x",), (encoding,), (None,)), size + data + b"!", "shard 3, byte 9")["x"]
    with pytest.raises(KeyError):
        row["y"]
