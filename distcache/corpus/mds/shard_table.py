"""The `.shards` file: the shards that make up the `.bin` of a corpus, which need not exist.

The shards follow one another, each at a multiple of `ALIGNMENT`. A corpus with such a file is a
view: the offsets of its `.idx` lead into the shards. docs/format.md describes the file byte by
byte.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from distcache.corpus.mds.index_json import CODECS, columns_from
from distcache.errors import CorpusError, NotReady
from distcache.storage.files import atomic_write, no_space_as_error, read_file
from distcache.storage.url import is_url

MAGIC: Final = b"\x89distshard\r\n\x1a\n\x00\x00"
VERSION: Final = 1
DIGESTED: Final = 1  # flag, always set: the digests of raw shards are known
ALIGNMENT: Final = 4096
MAX_TABLE_BYTES: Final = 1 << 34  # bytes of a file that is read
HEADER: Final = struct.Struct("<16sIIQQQQQQ16s24s16s")
BOUNDS: Final = {
    "base": 62,
    "raw_size": 32,  # offsets in a shard have 32 bits
    "zip_size": 33,
    "first_sequence": 62,
    "first_token": 62,
}
ROWS: Final = np.dtype(
    [
        ("base", "<u8"),
        ("raw_size", "<u8"),
        ("first_sequence", "<u8"),
        ("first_token", "<u8"),
        ("zip_size", "<u8"),
        ("raw_digest", "V16"),
        ("zip_digest", "V16"),
        ("name_begin", "<u8"),
        ("name_size", "<u4"),
        ("data_begin", "<u4"),
        ("codec", "<u4"),
        ("flags", "<u4"),
    ]
)


class TableFacts(msgspec.Struct, frozen=True):
    """What a cache has to know of a table before it has it."""

    digest: str  # digest of the table's content: `content_digest`
    shards: int  # number of shards
    # bytes of the names, and of the description of the columns
    text: int
    columns: int


@dataclass(frozen=True, eq=False)
class ShardTable:
    """A table of shards."""

    rows: NDArray[Any]  # rows in the order of the `.bin`
    text: bytes  # the paths of the files, in UTF-8, one after the other
    columns: bytes  # JSON of the columns of records, if the corpus is one of rows; else empty
    # over all shards
    sequences: int
    tokens: int

    @property
    def bin_size(self) -> int:
        """Bytes of the `.bin` that the shards make up."""
        return int(self.rows["base"][-1] + self.rows["raw_size"][-1]) if len(self.rows) else 0

    @property
    def facts(self) -> TableFacts:
        """What a cache has to know of it."""
        return TableFacts(
            content_digest(self.rows), len(self.rows), len(self.text), len(self.columns)
        )

    def path_of(self, shard: int) -> str:
        """Return the path of the file of a shard."""
        row = self.rows[shard]
        begin = int(row["name_begin"])
        return self.text[begin : begin + int(row["name_size"])].decode("utf-8")


def shards_path(prefix: str) -> str:
    """Return the path of the `.shards` file of a corpus."""
    return prefix + ".shards"


def has_table(prefix: str) -> bool:
    """Return whether shards make up the `.bin` of a corpus; those in buckets have files only."""
    return not is_url(prefix) and os.path.lexists(shards_path(prefix))


def shards_at(begins: NDArray[np.int64], offsets: Any) -> Any:
    """Return the shard of each byte of the `.bin`, or the last shard before it; -1 for none.

    Parameters
    ----------
    begins : ndarray of int64, shape (shards,)
        Bytes of the `.bin` at which the shards begin.
    offsets : ndarray of int64, or int
        Bytes of the `.bin`.
    """
    return np.searchsorted(begins, offsets, "right") - 1


def content_digest(rows: NDArray[Any]) -> str:
    """Return a digest of the raw shards: neither paths nor compression are part of it."""
    digest = xxhash.xxh3_128()
    for name in ("base", "raw_size", "data_begin", "raw_digest"):
        digest.update(np.ascontiguousarray(rows[name]).tobytes())
    return digest.hexdigest()


def write_table(prefix: str, table: ShardTable) -> None:
    """Write the `.shards` file of a corpus atomically."""
    body = table.rows.tobytes() + table.text + table.columns
    flags = DIGESTED if len(table.rows) else 0
    front = HEADER.pack(
        MAGIC,
        VERSION,
        flags,
        len(table.rows),
        table.sequences,
        table.tokens,
        table.bin_size,
        len(table.text),
        len(table.columns),
        xxhash.xxh3_128_digest(body),
        bytes(24),
        bytes(16),
    )[:-16]
    path = shards_path(prefix)
    with no_space_as_error(path), atomic_write(path) as stream:
        stream.write(front + xxhash.xxh3_128_digest(front))
        stream.write(body)


def read_table(prefix: str) -> ShardTable:
    """Read the `.shards` file of a corpus; nothing in it is trusted before its digest is verified.

    Raises
    ------
    NotReady
        If there is none.
    CorpusError
        If it is damaged.
    """
    path = shards_path(prefix)
    try:
        content = read_file(path, MAX_TABLE_BYTES)
    except FileNotFoundError as error:
        raise NotReady(f"{path}: no such file") from error
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read: {error.strerror}") from error
    if len(content) < HEADER.size or not content.startswith(MAGIC):
        raise CorpusError(f"{path}: is not a table of shards: its magic is {content[:16]!r}")
    if (
        xxhash.xxh3_128_digest(content[: HEADER.size - 16])
        != content[HEADER.size - 16 : HEADER.size]
    ):
        raise CorpusError(f"{path}: the header does not match its digest")
    _, version, _, count, sequences, tokens, bin_size, text, columns, digest, _, _ = (
        HEADER.unpack_from(content)
    )
    if version != VERSION:
        raise CorpusError(f"{path}: version is {version}, expected {VERSION}")
    body = content[HEADER.size :]
    names = count * ROWS.itemsize
    if len(body) != names + text + columns or xxhash.xxh3_128_digest(body) != digest:
        raise CorpusError(f"{path}: does not match its digest")
    table = ShardTable(
        np.frombuffer(body, ROWS, count),
        body[names : names + text],
        body[names + text :],
        sequences,
        tokens,
    )
    problem = _problem(table)
    if problem or table.bin_size != bin_size:
        raise CorpusError(f"{path}: {problem or f'its shards do not add up to {bin_size} bytes'}")
    return table


def _problem(table: ShardTable) -> str:
    """Return what is wrong with a table whose digest is right, or nothing."""
    rows = table.rows
    for name, bits in BOUNDS.items():
        if (rows[name] >> bits).any():
            return f"{name} of a shard is 2**{bits} or more"
    ends = rows["base"] + rows["raw_size"]
    if (rows["base"] % ALIGNMENT).any() or (rows["base"][1:] < ends[:-1]).any():
        return "its shards do not follow one another"
    if not (rows["flags"] & DIGESTED).all() or (rows["codec"] >= len(CODECS)).any():
        return "the digest or the compression of a shard is unknown"
    if (rows["data_begin"] > rows["raw_size"]).any():
        return "the records of a shard begin after its end"
    firsts = rows["first_sequence"].astype(np.int64)
    if (np.diff(firsts, append=table.sequences) < 0).any() or firsts[:1].any():
        return "the sequences of its shards do not follow one another"
    return _name_problem(table) or _column_problem(table)


def _name_problem(table: ShardTable) -> str:
    rows = table.rows
    limits = rows["name_begin"] + rows["name_size"]
    if (rows["name_begin"] >= 1 << 62).any() or (limits > len(table.text)).any():
        return "a name is outside of the table of names"
    try:
        paths: Sequence[str] = [table.path_of(shard) for shard in range(len(rows))]
    except UnicodeDecodeError:
        return "a name is not UTF-8"
    if any(not path.startswith("/") or "/../" in f"{path}/" or "\0" in path for path in paths):
        return "a name is not an absolute path"
    return ""


def _column_problem(table: ShardTable) -> str:
    if table.columns:
        try:
            columns_from(table.columns)
        except ValueError as error:
            return str(error)
    return ""
