"""What mosaicml-streaming writes is indexed as it reads it; `scripts/judges streaming` has it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support import here

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from streaming import LocalDataset, MDSWriter
    from streaming.base.util import merge_index

from tests.support.mds_corpora import documents_of

pytestmark = pytest.mark.filterwarnings("ignore")

RNG = np.random.default_rng(13)
CODECS = (None, "zstd:3", "zstd:19", "gz:1", "br:3", "bz2", "snappy")
KINDS = {
    "ndarray:int32": ("int32", None),
    "ndarray:uint16": ("uint16", None),
    "ndarray:uint32": ("uint32", None),
    "ndarray:int32:64": ("int32", None),
    "ndarray": ("int64", None),
    "bytes": ("int64", "int64"),
}


def draw(encoding: str) -> list[NDArray[Any]]:
    """Return documents of tokens, with lengths of all widths of shapes."""
    dtype, _ = KINDS[encoding]
    lengths = (
        [64] * 60 if encoding.endswith(":64") else [1, 255, 256, 65_536, 70_000, *range(2, 50)]
    )
    return [RNG.integers(0, 50_000, length).astype(dtype) for length in lengths]


def write(out: Path, encoding: str, documents: list[NDArray[Any]], **options: Any) -> None:
    """Write a data set with columns before and behind the tokens."""
    columns = {"domain": "str", "tokens": encoding, "weight": "float32"}
    with MDSWriter(out=str(out), columns=columns, size_limit=1 << 18, **options) as writer:
        for document in documents:
            value = document.tobytes() if encoding == "bytes" else document
            writer.write({"domain": "x" * (len(document) % 7), "tokens": value, "weight": 0.5})


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("encoding", KINDS)
def test_tokens_as_streaming_reads_them(encoding: str, codec: str | None, tmp_path: Path) -> None:
    """All encodings, compressions and hashes, over several shards."""
    documents = draw(encoding)
    hashes = ["sha1", "xxh3_128", "xxh64"]
    write(tmp_path / "data", encoding, documents, compression=codec, hashes=hashes)
    here.index(tmp_path / "data", tmp_path / "c", dtype=KINDS[encoding][1], vocabulary=50_000)
    found = documents_of(tmp_path / "c")
    assert found == [document.tolist() for document in documents]
    if codec is None:
        theirs = LocalDataset(local=str(tmp_path / "data"))
        for number, document in enumerate(found):
            tokens = theirs[number]["tokens"]
            read = np.frombuffer(tokens, "i8") if encoding == "bytes" else tokens
            assert read.tolist() == document


def test_a_merged_index(tmp_path: Path) -> None:
    """Of the directories of parallel writers."""
    parts = [draw("ndarray:int32")[k::2] for k in range(2)]
    for k, documents in enumerate(parts):
        write(tmp_path / "data" / str(k), "ndarray:int32", documents, compression="zstd")
    merge_index(str(tmp_path / "data"), keep_local=True)
    here.index(tmp_path / "data", tmp_path / "c")
    found = documents_of(tmp_path / "c")
    expected = [[document.tolist() for document in documents] for documents in parts]
    assert found in (expected[0] + expected[1], expected[1] + expected[0])


def test_rows_of_every_encoding(tmp_path: Path) -> None:
    """They are as many bytes as its writer gives each sample."""
    values: dict[str, tuple[str, Any]] = {
        "a": ("bytes", b"\x00\x01"),
        "b": ("str", "é"),
        "c": ("int", -5),
        "d": ("float64", 0.25),
        "e": ("uint8", 7),
        "f": ("str_int", 123),
        "g": ("str_float", 0.5),
        "h": ("json", {"x": [1, None]}),
        "i": ("ndarray", np.arange(6, dtype="u2").reshape(2, 3)),
        "j": ("ndarray:int8:2,2", np.ones((2, 2), "i1")),
        "k": ("pkl", {"never": "read"}),
    }
    columns = {name: kind for name, (kind, _) in values.items()}
    with MDSWriter(out=str(tmp_path / "data"), columns=columns, compression="zstd") as writer:
        for _ in range(5):
            writer.write({name: value for name, (_, value) in values.items()})
    receipt = here.index(tmp_path / "data", tmp_path / "c", column="")
    rows = documents_of(tmp_path / "c")
    assert receipt.sequences == 5
    assert all(row == rows[0] for row in rows)
    assert rows[0][-8:]
