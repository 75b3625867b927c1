"""Open a finished cache: its header and tables, one mapping, and views at known offsets."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from distcache.cache.format import (
    ARRAY_NAMES,
    ARRAY_TYPES,
    BEGIN_SIZE,
    HEADER_SIZE,
    MAGIC,
    TABLES,
    Header,
    array_fields,
)
from distcache.cache.other_files import directory_error, missing_error
from distcache.corpus import CorpusFacts
from distcache.corpus.idx import ITEM_TYPES
from distcache.corpus.loss import LossFacts
from distcache.corpus.mds.index_json import CODECS
from distcache.errors import CacheCorrupt, ConfigError, DistcacheError, NotReady
from distcache.kernels import Mapping
from distcache.storage.files import FileVersion, closing_fd, open_regular
from distcache.storage.place import open_place, read_all
from distcache.storage.threads import decodable
from distcache.storage.url import is_url, located


@decodable
class _Identity(msgspec.Struct, frozen=True):
    """The fields of an identity; most are decoded lazily."""

    sequence_length: int
    add_extra_token: bool
    blend: msgspec.Raw
    drop_last_partial_validation_sequence: msgspec.Raw
    mid_level_dataset_surplus: msgspec.Raw
    multiple_validation_sets: msgspec.Raw
    samples: msgspec.Raw
    seed: msgspec.Raw
    split: msgspec.Raw


@decodable
class _Naming(msgspec.Struct, frozen=True):
    """The fields of a naming."""

    blends: msgspec.Raw
    split: msgspec.Raw
    split_matrix: msgspec.Raw
    tokenizer: msgspec.Raw


@dataclass(frozen=True)
class ArrayView:
    """An array of the cache: its place and its digest."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    digest: str

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return self.dtype.itemsize * math.prod(self.shape)


class Contents:
    """The header and the tables of a cache.

    Parameters
    ----------
    path : str or Path
        Path of the file or URL of the object, for messages.
    header : Header
        Checked.
    tables : buffer
        The bytes from ``header.tables_begin`` to the end of the file.

    Attributes
    ----------
    moves : tuple of (str, str)
        Directories of corpora, at the time of the build and now; set by readers.

    Raises
    ------
    CacheCorrupt
        If the tables do not match their digest, or name what does not exist.
    """

    moves: tuple[tuple[str, str], ...] = ()

    def __init__(self, path: str | Path, header: Header, tables: bytes | memoryview) -> None:
        self.path = path if is_url(path) else Path(path)
        self.header = header
        self.tables = tables
        if xxhash.xxh3_128_digest(tables) != header.tables_digest:
            raise CacheCorrupt(f"{path}: the tables do not match their digest")
        self.require_consistent()

    @property
    def key(self) -> str:
        """The identity of everything in the cache."""
        return self.header.key

    def table(self, name: str) -> NDArray[Any]:
        """Return a table as a structured array; `distcache.cache.format` names the columns."""
        place = self.header.tables[name]
        begin = place.offset - self.header.tables_begin
        return np.frombuffer(self.tables, TABLES[name], place.rows, begin)

    @property
    def splits(self) -> list[str]:
        """The splits that have samples."""
        splits = self.table("members")["split"].tolist()
        return [split.decode("ascii") for split in dict.fromkeys(splits)]

    def loss_digest(self, source: int) -> str | None:
        """Return the digest of the loss mask of a corpus; None if it has none."""
        digests = self.identity.get("loss")
        return None if digests is None else digests[source]

    def loss_size(self, source: int) -> int:
        """Return the bytes of the loss mask of a corpus; 0 if it has none."""
        if self.loss_digest(source) is None:
            return 0
        entry = self.table("sources")[source]
        return int(entry["bin_size"]) // ITEM_TYPES[int(entry["type_code"])].itemsize

    @property
    def sequence_length(self) -> int:
        """Tokens per sample, without the extra one."""
        return self._identity.sequence_length

    @property
    def add_extra_token(self) -> bool:
        """Whether samples overlap by one token."""
        return self._identity.add_extra_token

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """The document whose digest is the key."""
        document: dict[str, Any] = json.loads(self.table("identity").tobytes())
        return document

    @functools.cached_property
    def naming(self) -> dict[str, Any]:
        """Parts of Megatron's names and options only: splits, tokenizer, blends by source."""
        document: dict[str, Any] = json.loads(self.table("naming").tobytes())
        return document

    @functools.cached_property
    def prefixes(self) -> list[str]:
        """The path prefix of each source, as the configuration gave it."""
        text = self.table("prefixes").tobytes()
        sources = self.table("sources")
        bounds = zip(sources["prefix_begin"].tolist(), sources["prefix_end"].tolist(), strict=True)
        return [text[begin:end].decode("utf-8") for begin, end in bounds]

    def shards_of(self, source: int) -> NDArray[Any]:
        """Return the shards that make up the `.bin` of a corpus; none if it is a file."""
        entry = self.table("sources")[source]
        return self.table("shards")[int(entry["shards_begin"]) : int(entry["shards_end"])]

    def shard_path(self, shard: Any) -> str:
        """Return the path of a shard, a row of the table."""
        begin = int(shard["name_begin"])
        end = begin + int(shard["name_size"])
        return self.table("shard_texts")[begin:end].tobytes().decode("utf-8")

    def columns_of(self, source: int) -> bytes:
        """Return the JSON of the columns of a corpus of rows; empty if it is one of tokens."""
        entry = self.table("sources")[source]
        begin, end = int(entry["columns_begin"]), int(entry["columns_end"])
        return self.table("shard_texts")[begin:end].tobytes()

    def arrays(self, table: str, row: int) -> dict[str, ArrayView]:
        """Return the places of the arrays of a section or blend.

        Parameters
        ----------
        table : str
            "sections" or "blends".
        row : int
            Row of that table.

        Raises
        ------
        CacheCorrupt
            If the table names bytes outside the data, or a dtype that no array has.
        """
        columns = self._array_columns[table]
        views = {}
        for name in ARRAY_NAMES[table]:
            raw_type, rows, offset, digest = (column[row] for column in columns[name])
            dtype = raw_type.decode("ascii", "replace")
            if not dtype and not rows:
                continue  # a section of rows has no samples to cut
            if dtype not in ARRAY_TYPES[name]:
                raise CacheCorrupt(f"{self.path}: {name} of {table} row {row} has dtype {dtype!r}")
            view = ArrayView(
                name=name,
                dtype=np.dtype(dtype),
                shape=(rows, 2) if name == "sample_index" else (rows,),
                offset=offset,
                digest=digest.decode("ascii", "replace"),
            )
            inside = HEADER_SIZE <= view.offset <= self.header.tables_begin - view.nbytes
            if not inside or view.offset % view.dtype.itemsize:
                raise CacheCorrupt(f"{self.path}: {name} of {table} row {row} is not in the data")
            views[name] = view
        return views

    @functools.cached_property
    def _array_columns(self) -> dict[str, dict[str, list[list[Any]]]]:
        """The columns that describe arrays, as lists: many times faster to look up in."""
        return {
            table: {
                name: [self.table(table)[column].tolist() for column, _ in array_fields(name)]
                for name in names
            }
            for table, names in ARRAY_NAMES.items()
        }

    def require_consistent(self) -> None:
        """Check references between tables; digests only show that they are unchanged.

        Raises
        ------
        CacheCorrupt
            If a row names another that does not exist, or a text is not what it must be.
        """
        members, sections = self.table("members"), self.table("sections")
        sources, shards = self.table("sources"), self.table("shards")
        text = len(self.table("shard_texts"))
        try:
            numbers = [
                (members["source"], len(self.table("sources"))),
                (sections["source"], len(self.table("sources"))),
                (members["section"], len(sections)),
                (members["blend"] + 1, len(self.table("blends")) + 1),
                (sources["shards_begin"], sources["shards_end"] + np.uint64(1)),
                (sources["shards_end"], len(shards) + 1),
                (sources["columns_begin"], sources["columns_end"] + np.uint64(1)),
                (sources["columns_end"], text + 1),
                (shards["codec"], len(CODECS)),
                (shards["name_begin"], text + 1),
                (shards["name_size"], text - shards["name_begin"].astype(np.int64) + 1),
            ]
            sound = all(bool(np.all((found >= 0) & (found < end))) for found, end in numbers)
            sound &= set(range(len(self.table("blends")))) <= set(members["blend"].tolist())
            self._identity = msgspec.json.decode(self.table("identity").tobytes(), type=_Identity)
            msgspec.json.decode(self.table("naming").tobytes(), type=_Naming)
            sound &= len(self.prefixes) == len(self.table("sources"))
            for table in ("members", "blends"):
                sound &= all(split.decode("ascii") for split in self.table(table)["split"].tolist())
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise CacheCorrupt(
                f"{self.path}: its tables are not those of a cache: {error}"
            ) from error
        if not sound:
            raise CacheCorrupt(f"{self.path}: its tables name rows or fields that do not exist")


def facts_of(contents: Contents, source: int, prefix: str) -> CorpusFacts:
    """Return the facts of a corpus that a cache was built from, for its present prefix.

    The facts of a table of shards are left out.
    """
    row = contents.table("sources")[source]
    digest = contents.loss_digest(source)
    loss = None if digest is None else LossFacts(digest, 0, 0, FileVersion(0, 0, 0))
    return CorpusFacts(
        prefix,
        row["idx_digest"].decode("ascii", "replace"),
        idx_size=int(row["idx_size"]),
        bin_size=int(row["bin_size"]),
        type_code=int(row["type_code"]),
        sequences=int(row["sequences"]),
        documents=int(row["documents"]),
        tokens=int(row["tokens"]),
        empty_sequences=int(row["empty_sequences"]),
        view=bool(row["view"]),
        loss=loss,
    )


def sources_drawn_no_more(contents: Contents) -> frozenset[int]:
    """Return the corpora of which no sample is read any more.

    A cache that continues another has such corpora: only the samples before it are theirs.
    """
    members, before = contents.table("members"), contents.identity.get("continue")
    if before is None:
        return frozenset()
    ends = np.cumsum([samples for samples, _ in contents.identity["phases"]])
    following = [
        weights
        for (_, weights), end in zip(contents.identity["phases"], ends.tolist(), strict=True)
        if end > before["samples"]
    ]
    is_train = members["split"] == b"train"
    drawn = np.array([any(weights) for weights in zip(*following, strict=True)])
    read = set(members["source"][~is_train].tolist()) | set(
        members["source"][is_train][drawn].tolist()
    )
    return frozenset(range(len(contents.table("sources")))) - read


def packed_sources(contents: Contents) -> frozenset[int]:
    """Return the corpora of a cache that have compressed shards."""
    count = len(contents.table("sources"))
    return frozenset(s for s in range(count) if contents.shards_of(s)["codec"].any())


def open_cache_file(path: Path) -> tuple[int, Header]:
    """Open a cache's file and read its header.

    Returns
    -------
    descriptor : int
        The caller closes it.
    header : Header
        Checked.

    Raises
    ------
    NotReady
        If the file does not exist, or cannot be opened.
    CacheCorrupt
        If it is not a whole cache.
    ConfigError
        If it is something else.
    """
    try:
        descriptor = open_regular(path)
    except FileNotFoundError as error:
        raise missing_error(path) from error
    except OSError as error:
        if path.is_dir():
            raise directory_error(path) from error
        kind = ConfigError if error.errno == errno.EINVAL else NotReady  # it is no regular file
        raise kind(f"{path}: cannot be opened: {error.strerror}") from error
    try:
        size = os.fstat(descriptor).st_size
        try:
            header = _header(
                lambda begin, end: os.pread(descriptor, end - begin, begin), path, size
            )
        except DistcacheError:
            raise
        except OSError as error:
            raise CacheCorrupt(f"{path}: cannot be read: {error.strerror}") from error
        return descriptor, header
    except BaseException:
        os.close(descriptor)
        raise


def _header(read: Callable[[int, int], bytes], path: str | Path, size: int) -> Header:
    """Read the header of a cache by a function of a range of bytes."""
    page = read(0, min(size, HEADER_SIZE))
    if not page.startswith(MAGIC):  # by what follows, a damaged cache is known from another file
        page += read(len(page), min(size, BEGIN_SIZE))
    return Header.unpack(page, str(path), size)


def read_contents(path: str | Path) -> Contents:
    """Read the header and tables of a cache, which may be an object.

    Raises
    ------
    NotReady, CacheCorrupt
        As `distcache.cache.open_cache`.
    """
    return read_version(path)[0]


def read_version(path: str | Path) -> tuple[Contents, FileVersion]:
    """Read the header and tables of a cache, and say of which version they are.

    Raises
    ------
    NotReady, CacheCorrupt
        As `distcache.cache.open_cache`.
    AccessDenied
        If an object may not be read.
    """
    with contextlib.ExitStack() as stack:
        try:
            place = stack.enter_context(open_place(str(path)))
        except FileNotFoundError as error:
            raise missing_error(path) from error
        except DistcacheError:
            raise
        except OSError as error:
            if os.path.isdir(path):
                raise directory_error(Path(path)) from error
            raise NotReady(f"{path}: cannot be opened: {error.strerror}") from error
        size = place.version.size
        try:
            header = _header(functools.partial(read_all, place), path, size)
            tables = read_all(place, header.tables_begin, header.file_size)
        except DistcacheError:
            raise
        except OSError as error:
            raise CacheCorrupt(f"{path}: cannot be read: {error.strerror}") from error
        return Contents(path, header, tables), place.version


class Cache(Contents):
    """An open cache. Its arrays are read-only views of one mapping of the file.

    Parameters
    ----------
    path : path
        Path of the cache, for messages.
    header : Header
        Header, already checked.
    mapped : Mapping
        The whole file.
    """

    path: Path

    def __init__(self, path: Path, header: Header, mapped: Mapping) -> None:
        super().__init__(path, header, memoryview(mapped)[header.tables_begin :])
        self.map = mapped

    def __repr__(self) -> str:
        return f"<cache {self.key[:16]}: {', '.join(self.splits)} in {self.path}>"

    def require_intact(self) -> None:
        """Refuse a file if parts of its mapping could not be read, and are zeros.

        Raises
        ------
        CacheCorrupt
            If it has been cut short since it was opened, or its filesystem has failed.
        """
        if not self.map.intact:
            raise CacheCorrupt(
                f"{self.path}: could not be read to its end: it was cut short while it was open, "
                "or its filesystem failed; see `distcache verify`"
            )

    def read(self, view: ArrayView) -> NDArray[Any]:
        """Return an array as a read-only view of the mapping; nothing is copied."""
        count = math.prod(view.shape)
        return np.frombuffer(memoryview(self.map), view.dtype, count, view.offset).reshape(
            view.shape
        )


def open_cache(path: str | Path) -> Cache:
    """Open a finished cache and check everything that opening reads.

    Parameters
    ----------
    path : path
        A file that `distcache build` published.

    Returns
    -------
    Cache
        Cache whose header, length and tables are verified. The arrays are not read;
        `distcache verify` does that.

    Raises
    ------
    NotReady
        If there is no such file.
    CacheCorrupt
        If it is not a whole cache.
    ConfigError
        If it is an object, which cannot be mapped.
    """
    if is_url(path):
        raise ConfigError(
            f"{located(path)}: is in a bucket; localize it, and use the copy on this node"
        )
    path = Path(path)
    descriptor, header = open_cache_file(path)
    with closing_fd(descriptor):
        try:
            mapped = Mapping(descriptor, header.file_size)
        except OSError as error:
            raise CacheCorrupt(f"{path}: cannot be read: {error.strerror}") from error
    cache = Cache(path, header, mapped)
    cache.require_intact()
    return cache
