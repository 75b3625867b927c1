"""Write MDS data sets in tests, as mosaicml-streaming 0.13 does."""

from __future__ import annotations

import bz2
import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cramjam
import numpy as np
import xxhash
import zstandard

SIZES = {"int": 8, "uint8": 1, "uint16": 2, "uint32": 4, "int32": 4, "int64": 8, "float32": 4}
CODES = {"uint8": 8, "int8": 9, "uint16": 16, "int16": 17, "float16": 18, "uint32": 32,
         "int32": 33, "float32": 34, "uint64": 64, "int64": 65, "float64": 66}  # fmt: skip


def encode(encoding: str, value: Any) -> bytes:
    """Return the bytes of a value."""
    kind, *words = encoding.split(":")
    if isinstance(value, bytes):
        return value
    if kind == "str":
        return str(value).encode()
    if kind == "json":
        return json.dumps(value).encode()
    if kind in SIZES:
        return np.array(value, "i8" if kind == "int" else kind).tobytes()
    assert kind == "ndarray"
    array = np.asarray(value, words[0] if words else None)
    if len(words) == 2:
        return array.tobytes()
    power = next(k for k in range(4) if max(array.shape) < 1 << (8 << k))
    head = bytes([array.ndim << 2 | power]) + np.array(array.shape, f"u{1 << power}").tobytes()
    return (b"" if words else bytes([CODES[array.dtype.name]])) + head + array.tobytes()


def size_of(encoding: str) -> int | None:
    """Return the bytes of all values of an encoding, if they have the same."""
    kind, *words = encoding.split(":")
    if kind == "ndarray" and len(words) == 2:
        return np.dtype(words[0]).itemsize * int(np.prod(list(map(int, words[1].split(",")))))
    return SIZES.get(kind)


def raw_shard(
    columns: Mapping[str, str], samples: Sequence[Mapping[str, Any]], compression: str | None = None
) -> tuple[bytes, dict[str, Any]]:
    """Return a raw shard, and what the index says of its columns."""
    names = sorted(columns)
    sizes = [size_of(columns[name]) for name in names]
    known = {
        "column_encodings": [columns[name] for name in names],
        "column_names": names,
        "column_sizes": sizes,
        "compression": compression,
        "format": "mds",
        "hashes": [],
        "size_limit": 1 << 26,
        "version": 2,
    }
    text = json.dumps(known, sort_keys=True).encode()
    packed = []
    for sample in samples:
        values = [encode(columns[name], sample[name]) for name in names]
        head = b"".join(
            np.uint32(len(value)).tobytes()
            for value, size in zip(values, sizes, strict=True)
            if size is None
        )
        packed.append(head + b"".join(values))
    begin = 4 * (len(samples) + 2) + len(text)
    offsets = np.cumsum([begin, *map(len, packed)]).astype("<u4")
    return np.uint32(len(samples)).tobytes() + offsets.tobytes() + text + b"".join(packed), known


def compress(codec: str, data: bytes) -> bytes:
    """Return data as the writer compresses it."""
    match codec:
        case "zstd":
            return zstandard.ZstdCompressor(level=3).compress(data)
        case "gz":
            return gzip.compress(data, 1)
        case "bz2":
            return bz2.compress(data)
        case "br":
            return bytes(cramjam.brotli.compress(data, 1))
    return bytes(cramjam.snappy.compress_raw(data))


def write_mds(
    directory: Path,
    columns: Mapping[str, str],
    samples: Sequence[Mapping[str, Any]],
    *,
    per_shard: int = 7,
    codec: str = "",
    hashes: Sequence[str] = (),
    keep_raw: bool = False,
) -> Path:
    """Write a data set of several shards, and return its directory."""
    directory.mkdir(parents=True, exist_ok=True)
    shards = []
    for number, begin in enumerate(range(0, len(samples), per_shard)):
        raw, known = raw_shard(columns, samples[begin : begin + per_shard], codec or None)
        name = f"shard.{number:05}.mds"

        def describe(basename: str, data: bytes) -> dict[str, Any]:
            digests = {kind: getattr(xxhash, kind)(data).hexdigest() for kind in hashes}
            return {"basename": basename, "bytes": len(data), "hashes": digests}

        zipped = compress(codec, raw) if codec else b""
        if keep_raw or not codec:
            (directory / name).write_bytes(raw)
        if codec:
            (directory / f"{name}.{codec}").write_bytes(zipped)
        shards.append(
            {
                **known,
                "hashes": list(hashes),
                "raw_data": describe(name, raw),
                "zip_data": describe(f"{name}.{codec}", zipped) if codec else None,
                "samples": len(samples[begin : begin + per_shard]),
            }
        )
    text = json.dumps({"version": 2, "shards": shards}, sort_keys=True)
    (directory / "index.json").write_text(text)
    return directory
