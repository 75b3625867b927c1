"""Documents as an MDS data set, its corpus, and how to read both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distcache.corpus import open_idx
from distcache.corpus.mds.index_json import CODECS
from distcache.corpus.mds.shard_table import ALIGNMENT, read_table
from distcache.corpus.mds.stored_shard import StoredShard, raw_pieces
from tests.support.mds_writer import write_mds

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
