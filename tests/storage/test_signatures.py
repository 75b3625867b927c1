"""Files of other formats are known by how they begin; arrays of token ids are none."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import sqlite3
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
import torch
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from distcache.storage.signatures import HEAD_BYTES, TAIL_BYTES, other_format
from tests.support.mds_writer import write_mds

TABLE: Final = pa.table({"a": [1, 2, 3]})


def written(write: Callable[[io.BytesIO], Any]) -> bytes:
    """Return what is written to a stream."""
    stream = io.BytesIO()
    write(stream)
    return stream.getvalue()


def of_tar() -> bytes:
    """Return an archive of one file."""

    def write(stream: io.BytesIO) -> None:
        with tarfile.open(fileobj=stream, mode="w") as archive:
            archive.addfile(tarfile.TarInfo("a.txt"))

    return written(write)


def of_hdf5(directory: Path, block: int) -> bytes:
    """Return an HDF5 file with a user block."""
    with h5py.File(directory / "a.h5", "w", userblock_size=block) as file:
        file["a"] = [1]
    return (directory / "a.h5").read_bytes()


def of_sqlite(directory: Path) -> bytes:
    """Return a database."""
    with sqlite3.connect(directory / "a.db") as database:
        database.execute("create table a (b)")
    return (directory / "a.db").read_bytes()


def of_arrow_stream() -> bytes:
    """Return a stream, which has no signature."""

    def write(stream: io.BytesIO) -> None:
        with pyarrow.ipc.new_stream(stream, TABLE.schema) as out:
            out.write_table(TABLE)

    return written(write)


def of_mds(directory: Path, count: int) -> bytes:
    """Return a shard of samples."""
    samples = [{"tokens": bytes(range(number % 50))} for number in range(count)]
    write_mds(directory, {"tokens": "bytes"}, samples, per_shard=count)
    return (directory / "shard.00000.mds").read_bytes()


MAKERS: Final[dict[str, tuple[Callable[[Path], bytes], str]]] = {
    "gzip": (lambda _: gzip.compress(b"a"), "compressed by gzip"),
    "bzip2": (lambda _: bz2.compress(b"a", 1), "compressed by bzip2"),
    "bzip2 of nothing": (lambda _: bz2.compress(b"", 9), "compressed by bzip2"),
    "xz": (lambda _: lzma.compress(b"a"), "compressed by xz"),
    "lzma": (lambda _: lzma.compress(b"a", lzma.FORMAT_ALONE), "compressed by lzma"),
    "zstd": (lambda _: zstandard.compress(b"a"), "compressed by zstd"),
    "skippable": (lambda _: b"\x5a\x2a\x4d\x18\4\0\0\0abcd", "compressed by zstd or lz4"),
    "lz4": (lambda _: pa.compress(b"a", "lz4", asbytes=True), "compressed by lz4"),
    "tar": (lambda _: of_tar(), "a tar archive"),
    "npz": (lambda _: written(lambda s: np.savez(s, a=[1])), "a zip archive"),
    "empty zip": (lambda _: written(lambda s: zipfile.ZipFile(s, "w").close()), "a zip archive"),
    "torch": (lambda _: written(lambda s: torch.save([1], s)), "a zip archive"),
    "old torch": (
        lambda _: written(lambda s: torch.save([1], s, _use_new_zipfile_serialization=False)),
        "a pickle",
    ),
    "pickle 2": (lambda _: pickle.dumps({"vocab_size": 65}, 2), "a pickle"),
    "pickle 5": (lambda _: pickle.dumps({"vocab_size": 65}, 5), "a pickle"),
    "parquet": (lambda _: written(lambda s: pq.write_table(TABLE, s)), "a Parquet file"),
    "arrow": (lambda _: written(lambda s: pa.feather.write_feather(TABLE, s)), "an Arrow file"),
    "feather 1": (lambda _: b"FEA1" + bytes(40) + b"FEA1", "an Arrow file"),
    "arrow stream": (lambda _: of_arrow_stream(), "an Arrow stream"),
    "orc": (lambda _: written(lambda s: pa.orc.write_table(TABLE, s)), "an ORC file"),
    "hdf5": (lambda directory: of_hdf5(directory, 0), "an HDF5 file"),
    "hdf5 behind a block": (lambda directory: of_hdf5(directory, 512), "an HDF5 file"),
    "sqlite": (of_sqlite, "an SQLite database"),
    "mds": (lambda directory: of_mds(directory, 3), "an MDS shard"),
    "long mds": (lambda directory: of_mds(directory, 3000), "an MDS shard"),
    "npy": (lambda _: written(lambda s: np.save(s, [1])), "a NumPy array"),
    "tfrecord": (
        # The masked sum of the length 5 by google-crc32c.
        lambda _: struct.pack("<Q", 5) + bytes.fromhex("eab2043e") + b"12345" + bytes(4),
        "a TFRecord file",
    ),
    "safetensors": (
        lambda _: struct.pack("<Q", 16) + b'{"a":{}}        ' + bytes(40),
        "a safetensors file",
    ),
    "gguf": (lambda _: b"GGUF\3\0\0\0" + bytes(16), "a GGUF model"),
    "avro": (lambda _: b"Obj\x01\2\x16avro.schema" + bytes(16), "an Avro file"),
    "lance": (lambda _: bytes(range(200)) + b"LANC", "a Lance file"),
    "fairseq": (lambda _: b"TNTIDX\0\0" + bytes(40), "an index of fairseq's"),
    "idx": (lambda _: b"MMIDIDX\0\0" + bytes(40), "an index of Megatron's"),
    "git-lfs": (
        lambda _: b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12\n",
        "a pointer of git-lfs: fetch the file that it stands for with `git lfs pull`",
    ),
    "git-annex": (lambda _: b"/annex/objects/MD5-s12--6f5902\n", "a pointer of git-annex"),
    "html": (lambda _: b"<!DOCTYPE html><title>404</title>", "a page in HTML or XML"),
    "json": (lambda _: json.dumps({"vocabulary": 50257}).encode(), "JSON"),
    "readme": (lambda _: "# Größe der Daten\n\nsiehe unten\n".encode(), "a text"),
}


@pytest.mark.parametrize("name", MAKERS)
def test_what_files_are(name: str, tmp_path: Path) -> None:
    """Each as its own library writes it, where there is one here."""
    make, what = MAKERS[name]
    content = make(tmp_path)
    found = other_format(content[:HEAD_BYTES], len(content), content[-TAIL_BYTES:])
    assert found is not None
    assert found.startswith(what)


@given(
    st.lists(st.integers(0, 50256), max_size=600),
    st.sampled_from(["<u2", "<u4", "<i4", "<i8"]),
)
def test_token_ids_are_no_other_format(ids: list[int], dtype: str) -> None:
    """However small they are, and whatever they begin with."""
    content = np.array(ids, dtype).tobytes()
    assert other_format(content[:HEAD_BYTES], len(content), content[-TAIL_BYTES:]) is None


@pytest.mark.parametrize(
    ("dtype", "ids"),
    [
        ("u1", [*b"PARENTS of the child\nsecond line\0more"]),
        ("u1", [*b"ORCHARD trees and more of them"]),
        ("<i8", [2, 8827, *range(1000, 1100), 0]),
        ("<i8", [8, 8827, *range(1000, 1100), 0]),
        ("<u2", [21071, 67, *range(500)]),
        ("<u2", [25167, 362, *range(500)]),
        ("<u2", [35615, 8, *range(500)]),
        ("<u2", [8224] * 50),
        ("<u2", [0x3E3C] * 8),
        ("<u4", [1, 306, 4 * 40, *range(37)]),
        ("<u2", [65535, 65535, 50, 0, *range(500)]),
    ],
)
def test_token_ids_that_begin_like_something_else(dtype: str, ids: list[int]) -> None:
    """The rest of them does not."""
    content = np.array(ids, dtype).tobytes()
    texts = dtype != "u1"
    assert other_format(content, len(content), content[-TAIL_BYTES:], texts=texts) is None


def test_bytes_as_tokens_are_no_text() -> None:
    """Where ids of 8 bits are expected."""
    assert other_format(b"once upon a time", 16, b"time") == "a text"
    assert other_format(b"once upon a time", 16, b"time", texts=False) is None
