"""The format of the cache file, as docs/format.md describes it byte by byte.

An HDF5 file with a user block of 4096 bytes. The user block holds the header, which says where the
tables are, so that a loader maps the file and never needs HDF5; HDF5 tools see the same arrays and
tables as datasets.
"""

from __future__ import annotations

import math
import struct
from typing import Any, Final

import msgspec
import numpy as np
import xxhash

from distcache.corpus.mds.shard_table import ROWS
from distcache.errors import CacheCorrupt, ConfigError, DistcacheError
from distcache.storage.signatures import HDF5, other_format

MAGIC: Final = b"\x89distcache\r\n\x1a\n\x00\x00"
VERSION: Final = 1
HEADER_SIZE: Final = 4096
BLOCK_SIZE: Final = 64 << 20
LEAF_SIZE: Final = 1 << 20
# Bytes that identify a cache: our header, then HDF5's signature.
BEGIN_SIZE: Final = HEADER_SIZE + len(HDF5)

_FIXED: Final = struct.Struct("<16sII64sQQQQQ16s")
_PLACE: Final = struct.Struct("<16sQQQ")
_DIGEST_SIZE: Final = 16

ARRAY_NAMES: Final = {
    "sections": ("document_index", "sample_index", "shuffle_index"),
    "blends": ("dataset_index", "dataset_sample_index"),
}


ARRAY_TYPES: Final = {
    "document_index": ("<i4",),
    "sample_index": ("<i4", "<i8"),
    "shuffle_index": ("<u4", "<i8"),
    "dataset_index": ("<i2",),
    "dataset_sample_index": ("<i8",),
}


def array_fields(name: str) -> list[tuple[str, str]]:
    """Return the table columns that describe an array: dtype, rows, byte offset and digest."""
    return [
        (f"{name}_type", "S4"),
        (f"{name}_rows", "<u8"),
        (f"{name}_offset", "<u8"),
        (f"{name}_digest", "S32"),
    ]


def _array_columns(table: str) -> list[tuple[str, str]]:
    return [column for name in ARRAY_NAMES[table] for column in array_fields(name)]


SOURCES: Final = np.dtype(
    [
        ("prefix_begin", "<u8"),
        ("prefix_end", "<u8"),
        ("idx_digest", "S32"),
        ("idx_size", "<u8"),
        ("bin_size", "<u8"),
        ("sequences", "<u8"),
        ("documents", "<u8"),
        ("tokens", "<u8"),
        ("empty_sequences", "<u8"),
        ("type_code", "<u8"),
        ("view", "<u8"),
        ("shards_begin", "<u8"),
        ("shards_end", "<u8"),
        ("shards_digest", "S32"),
        ("columns_begin", "<u8"),
        ("columns_end", "<u8"),
    ]
)
SECTIONS: Final = np.dtype(
    [
        ("key", "S64"),
        ("source", "<u8"),
        ("begin", "<u8"),
        ("end", "<u8"),
        ("tokens", "<u8"),
        ("epochs", "<u8"),
        ("samples", "<u8"),
        ("separate_samples", "<i8"),
        *_array_columns("sections"),
        ("unit", "<u8"),
        ("order", "S8"),
    ]
)
BLENDS: Final = np.dtype(
    [
        ("key", "S64"),
        ("split", "S8"),
        ("size", "<u8"),
        ("exhaustive", "<u8"),
        *_array_columns("blends"),
        ("unit", "<u8"),
    ]
)
MEMBERS: Final = np.dtype(
    [
        ("split", "S8"),
        ("source", "<u8"),
        ("section", "<u8"),
        ("requested", "<i8"),
        ("blend", "<i8"),
        ("weight", "<f8"),
    ]
)
BLOCKS: Final = np.dtype("<u8")
TEXT: Final = np.dtype("u1")
SHARDS: Final = ROWS
TABLES: Final = {
    "sources": SOURCES,
    "sections": SECTIONS,
    "blends": BLENDS,
    "members": MEMBERS,
    "blocks": BLOCKS,
    "identity": TEXT,
    "naming": TEXT,
    "prefixes": TEXT,
    "shards": SHARDS,
    "shard_texts": TEXT,
}


class TablePlace(msgspec.Struct, frozen=True):
    """The place of a table: its first byte and its number of rows."""

    offset: int
    rows: int


class Header(msgspec.Struct, frozen=True):
    """The first page of a cache file."""

    key: str  # the cache's key
    file_size: int  # bytes of the whole file
    tables_begin: int  # start of the tables, which end with the file
    tables_digest: bytes  # XXH3-128 of all bytes of the tables
    tables: dict[str, TablePlace]  # every table

    def pack(self) -> bytes:
        """Return the page, with its own digest in its last 16 bytes."""
        page = _FIXED.pack(
            MAGIC,
            VERSION,
            len(self.tables),
            self.key.encode("ascii"),
            self.file_size,
            HEADER_SIZE,
            self.tables_begin,
            BLOCK_SIZE,
            LEAF_SIZE,
            self.tables_digest,
        )
        for name, place in self.tables.items():
            size = TABLES[name].itemsize
            page += _PLACE.pack(name.encode("ascii"), place.offset, place.rows, size)
        page = page.ljust(HEADER_SIZE - _DIGEST_SIZE, b"\x00")
        return page + xxhash.xxh3_128_digest(page)

    @classmethod
    def unpack(cls, page: bytes, path: str, file_size: int) -> Header:
        """Read the page; nothing in it is trusted before its digest is verified.

        Parameters
        ----------
        page : bytes
            The first `HEADER_SIZE` bytes of the file, or fewer.
        path : str
            Path of the file, for messages.
        file_size : int
            The file's true length in bytes.

        Returns
        -------
        Header
            All of its places are within the file.

        Raises
        ------
        CacheCorrupt
            If anything is not as the format says.
        ConfigError
            If it is a file of another kind.
        """
        page = _header_page(page, path, file_size)
        _, version, count, key, size, *sizes, digest = _FIXED.unpack_from(page)
        header_size, tables_begin, block_size, leaf_size = sizes
        if version != VERSION:
            raise CacheCorrupt(f"{path}: format version is {version}, expected {VERSION}")
        if (header_size, block_size, leaf_size) != (HEADER_SIZE, BLOCK_SIZE, LEAF_SIZE):
            raise CacheCorrupt(f"{path}: has header, block and leaf sizes of another version")
        if size != file_size:
            raise CacheCorrupt(f"{path}: has {file_size} bytes, expected {size}")
        if count != len(TABLES):
            raise CacheCorrupt(f"{path}: the header names {count} tables, expected {len(TABLES)}")
        tables = {}
        for index in range(count):
            place = _PLACE.unpack_from(page, _FIXED.size + index * _PLACE.size)
            name = place[0].rstrip(b"\x00").decode("ascii", "replace")
            offset, rows, item_size = place[1:]
            end = offset + rows * item_size
            sound = name in TABLES and TABLES[name].itemsize == item_size
            if not sound or end > size or offset < tables_begin:
                raise CacheCorrupt(f"{path}: table {name!r} is not one of this format")
            tables[name] = TablePlace(offset, rows)
        if tables.keys() != TABLES.keys() or not HEADER_SIZE <= tables_begin <= size:
            raise CacheCorrupt(f"{path}: the header does not name every table")
        return cls(key.decode("ascii", "replace"), size, tables_begin, digest, tables)


class DatasetPlace(msgspec.Struct, frozen=True):
    """A dataset's group and name, dtype, shape and wanted byte offset."""

    group: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def type(self) -> np.dtype[Any]:
        """The dtype; each table has its own."""
        return TABLES[self.name] if self.group == "tables" else np.dtype(self.dtype)

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return self.type.itemsize * math.prod(self.shape)


def _header_page(page: bytes, path: str, file_size: int) -> bytes:
    """Return the page of a header, compared with its digest, of the first bytes of a file."""
    if not page.startswith(MAGIC):
        raise _no_cache(path, page, file_size)
    page = page[:HEADER_SIZE]
    if len(page) < HEADER_SIZE:
        raise CacheCorrupt(f"{path}: has {file_size} bytes, fewer than a header")
    if xxhash.xxh3_128_digest(page[:-_DIGEST_SIZE]) != page[-_DIGEST_SIZE:]:
        raise CacheCorrupt(f"{path}: the header does not match its digest")
    return page


def _no_cache(path: str, page: bytes, file_size: int) -> DistcacheError:
    """Return the error for a file that does not begin as a cache; behind a header is HDF5's."""
    cut = MAGIC.startswith(page[: len(MAGIC)])
    if cut or page[HEADER_SIZE:].startswith(HDF5) or not page.strip(b"\0"):
        return CacheCorrupt(f"{path}: its header is damaged: it begins with {page[:16]!r}")
    tokens = path.endswith(".bin")
    known = other_format(page, file_size, texts=not tokens)
    known = known or ("the tokens of a corpus" if tokens else None)
    looks = f"; it looks like {known}" if known else f": it begins with {page[:16]!r}"
    return ConfigError(f"{path}: is no cache{looks}; give the .h5 file that `build` has written")
