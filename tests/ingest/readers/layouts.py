"""The forms of inputs as a table: whatever holds for one has to hold for all.

A new format is a row, or several; `test_layouts.py` has what holds.
"""

from __future__ import annotations

import bz2
import functools
import gzip
import json
import lzma
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Row = str | list[int] | None
"""A text or token ids; an empty one is a row without tokens, None an invalid row."""
END: Final = 0
INVALID: Final = 1 << 17  # a token beyond the vocabulary
VOCABULARY: Final = 1 << 16
GROUP: Final = 70
Pack = Callable[[bytes], bytes]


class Layout(NamedTuple):
    """A form of inputs."""

    name: str  # name of the file, by which its format is known
    write: Callable[[Path, Sequence[Row]], list[int]]  # returns the place of each row
    options: Mapping[str, Any] = MappingProxyType({})
    has_lines: bool = False  # a place is a line, counted from 1; else a row, counted from 0
    has_empty: bool = True  # a row may be empty
    knows_its_end: bool = True  # a file that has been cut short is no shorter file


def _lines(field: str, pack: Pack, path: Path, rows: Sequence[Row]) -> list[int]:
    """Write lines of JSON with blank ones between them."""
    lines: list[str] = []
    places = []
    for number, row in enumerate(rows):
        lines += [""] * (number % 31 == 9)
        places.append(len(lines) + 1)
        value = row if row is not None or field == "text" else [INVALID]
        lines.append(json.dumps({"id": number, field: value}))
    path.write_bytes(pack("".join(line + "\n" for line in lines).encode()))
    return places


def _plain(path: Path, rows: Sequence[Row]) -> list[int]:
    """Write lines of text; an invalid one is not UTF-8."""
    content = [b"\xff" if row is None else str(row).encode() for row in rows]
    path.write_bytes(b"".join(line + b"\r\n" for line in content))
    return list(range(1, len(rows) + 1))


def _files(path: Path, rows: Sequence[Row]) -> list[int]:
    """Write a directory with a file for each text."""
    path.mkdir()
    for number, row in enumerate(rows):
        content = b"\xff" if row is None else str(row).encode()
        (path / f"{number:04}.txt").write_bytes(content)
    return [0] * len(rows)


def _table(kind: pa.DataType, path: Path, rows: Sequence[Row]) -> list[int]:
    """Write a table in groups of rows: Parquet, an Arrow file, or a stream of Arrow."""
    is_text = not pa.types.is_nested(kind)
    values = [row if row is not None or is_text else [INVALID] for row in rows]
    table = pa.table({"text" if is_text else "input_ids": pa.array(values, kind)})
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=GROUP)
    else:
        make = pa.ipc.new_stream if path.name.startswith("stream") else pa.ipc.new_file
        with pa.OSFile(str(path), "wb") as stream, make(stream, table.schema) as writer:
            writer.write_table(table, max_chunksize=GROUP)
    return list(range(len(rows)))


def _array(dtype: str, path: Path, rows: Sequence[Row]) -> list[int]:
    """Write an array of ids, with a header if it is called so, and an index of its documents."""
    values = [np.array([INVALID, END] if row is None else row, dtype) for row in rows]
    flat = np.concatenate([np.zeros(0, dtype), *values])
    if path.name.startswith("header"):
        np.save(path, flat)
    else:
        flat.tofile(path)
    if path.suffix == ".ds":
        np.cumsum([len(value) for value in values], dtype=np.uint64).tofile(f"{path}.index")
    return list(range(len(rows)))


def _zstd(content: bytes) -> bytes:
    packed = pa.BufferOutputStream()
    with pa.CompressedOutputStream(packed, "zstd") as stream:
        stream.write(content)
    return bytes(packed.getvalue())


def _streams(pack: Pack, content: bytes) -> bytes:
    """Compress in two streams, which tools put one after the other."""
    return pack(content[:1000]) + pack(content[1000:])


def _json(name: str, field: str, pack: Pack = bytes) -> Layout:
    return Layout(name, functools.partial(_lines, field, pack), has_lines=True)


def _columns(name: str, kind: pa.DataType) -> Layout:
    return Layout(name, functools.partial(_table, kind))


TEXTS: Final = {
    "JSON lines": _json("a.jsonl", "text"),
    "JSON lines by another name": _json("a.ndjson", "text"),
    "gzip": _json("a.jsonl.gz", "text", functools.partial(_streams, gzip.compress)),
    "zstd": _json("a.jsonl.zst", "text", _zstd),
    "bzip2": _json("a.jsonl.bz2", "text", functools.partial(_streams, bz2.compress)),
    "xz": _json("a.jsonl.xz", "text", functools.partial(_streams, lzma.compress)),
    "lines of text": Layout(
        "a.txt", _plain, {"documents": "line"}, has_lines=True, knows_its_end=False
    ),
    "files of text": Layout("in", _files, knows_its_end=False),
    "Parquet": _columns("a.parquet", pa.string()),
    "Parquet with a dictionary": _columns("a.parquet", pa.dictionary(pa.int32(), pa.string())),
    "Arrow": _columns("a.arrow", pa.string_view()),
    "a stream of Arrow": _columns("stream.arrow", pa.large_string()),
}
TOKENS: Final = {
    "JSON lines of ids": _json("a.jsonl", "input_ids"),
    "JSON lines of ids, gzip": _json("a.jsonl.gz", "input_ids", gzip.compress),
    "Parquet of ids": _columns("a.parquet", pa.list_(pa.int32())),
    "Parquet of large lists": _columns("a.parquet", pa.large_list(pa.uint64())),
    "Arrow of ids": _columns("a.arrow", pa.list_view(pa.int64())),
    "Arrow of large views": _columns("a.arrow", pa.large_list_view(pa.uint32())),
    "a stream of ids": _columns("stream.arrow", pa.list_(pa.uint32())),
    "an array with a header": Layout(
        "header.npy", functools.partial(_array, "i4"), has_empty=False
    ),
    "an array without a header": Layout(
        "a.npy",
        functools.partial(_array, "u4"),
        {"dtype": "uint32"},
        has_empty=False,
        knows_its_end=False,
    ),
    "an array with an index": Layout(
        "a.ds", functools.partial(_array, "u4"), {"dtype": "uint32", "eod": None}
    ),
}
LAYOUTS: Final = TEXTS | TOKENS
