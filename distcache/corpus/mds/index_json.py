"""`index.json`: the list of the shards of a data set."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Annotated, Final

import msgspec
import xxhash

from distcache.errors import ConfigError, CorpusError, NotReady
from distcache.storage.files import read_file
from distcache.storage.threads import decodable

INDEX: Final = "index.json"
MAX_INDEX_BYTES: Final = 4 << 30  # bytes; that of 50,000 shards has 18 MB
# A `.shards` file has their number here; the names are suffixes of files.
CODECS: Final = ("", "zstd", "gz", "br", "snappy", "bz2")
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of a shard: its name below the data set, its bytes and their digests."""

    basename: str
    bytes: Count
    hashes: dict[str, str]


@decodable
class Columns(msgspec.Struct, frozen=True):
    """The columns of the records of a shard, in their order; sizes are None where they vary."""

    column_names: tuple[str, ...]
    column_encodings: tuple[str, ...]
    column_sizes: tuple[Annotated[int, msgspec.Meta(ge=1, lt=1 << 32)] | None, ...]

    def place_of(self, name: str) -> int:
        """Return which column has a name; `ValueError` if none has."""
        return self.column_names.index(name)


class ShardEntry(Columns, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A shard of `index.json`."""

    # 2, ``mds``
    version: int
    format: str
    compression: str | None  # algorithm and level
    hashes: tuple[str, ...]  # algorithms of the digests of its files
    # the shard, and its compressed form if there is one
    raw_data: FileEntry
    samples: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]  # number of records
    size_limit: int | str | None  # size limit that its writer was given
    zip_data: FileEntry | None

    @property
    def columns(self) -> Columns:
        """Its columns alone."""
        return Columns(self.column_names, self.column_encodings, self.column_sizes)

    @property
    def codec(self) -> str:
        """The name of the algorithm of the compressed form; empty without one."""
        return (self.compression or "").partition(":")[0]


@decodable
class _IndexFile(msgspec.Struct, frozen=True):
    """The whole file; streaming passes over other fields of it, and of it alone."""

    version: int
    shards: tuple[ShardEntry, ...]


class DataSet(msgspec.Struct, frozen=True):
    """A directory with an `index.json`."""

    directory: str  # absolute
    # bytes and XXH3-128 of `index.json`
    size: int
    digest: str
    shards: tuple[ShardEntry, ...]  # shards in the order of the records


def read_index(directory: str | Path, split: str = "") -> DataSet:
    """Read the `index.json` of a data set.

    Parameters
    ----------
    directory : path
        Directory of the data set.
    split : str
        A subdirectory, as streaming's ``Stream(split=...)``; empty for none.

    Raises
    ------
    NotReady
        If there is none.
    CorpusError
        With everything that is wrong with it.
    ConfigError
        If the split leads elsewhere.
    """
    if split and (Path(split).is_absolute() or ".." in Path(split).parts):
        raise ConfigError(f"--subdirectory {split}: expected the name of a subdirectory")
    root = os.path.join(directory, split)
    # Where a link is followed by "..", the text of a path says another place than the filesystem.
    root = (os.path.realpath if ".." in Path(root).parts else os.path.abspath)(root)
    path = os.path.join(root, INDEX)
    try:
        content = read_file(path, MAX_INDEX_BYTES)
    except FileNotFoundError as error:
        hint = _hint(root)
        raise NotReady(f"{path}: no such file{hint}") from error
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        found = msgspec.json.decode(content, type=_IndexFile)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorpusError(f"{path}: is not an index of MDS shards: {error}") from error
    problems = [] if found.version == 2 else [f"version is {found.version}, expected 2"]
    for number, shard in enumerate(found.shards):
        problems += [f"shard {number}: {problem}" for problem in _problems(shard)]
    problems += _repeated(found.shards)
    if problems:
        raise CorpusError(*(f"{path}: {problem}" for problem in problems))
    digest = xxhash.xxh3_128_hexdigest(content)
    return DataSet(root, len(content), digest, found.shards)


def columns_from(text: bytes) -> Columns:
    """Return the columns that JSON describes.

    Raises
    ------
    ValueError
        If it does not.
    """
    try:
        columns = msgspec.json.decode(text, type=Columns)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"the description of its columns is damaged: {error}") from error
    for problem in _column_problems(columns):
        raise ValueError(f"the description of its columns is damaged: {problem}")
    return columns


def _hint(root: str) -> str:
    """Return which subdirectories are data sets, for a message."""
    try:
        names = sorted(os.listdir(root))
    except OSError:
        return ""
    found = [name for name in names if Path(root, name, INDEX).exists()]
    if not found and any(".mds" in name for name in names):
        return "; there are shards: examples/mds_index.py of distcache makes it again"
    if not found:
        return ""
    some = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")
    return f"; its subdirectories {some} have one: give --subdirectory, or these directories"


def _problems(shard: ShardEntry) -> list[str]:
    """Return what is wrong with one shard of an index."""
    found = []
    if (shard.version, shard.format) != (2, "mds"):
        found.append(f"is {shard.format} version {shard.version}, expected mds version 2")
    found += _column_problems(shard)
    if (shard.zip_data is None) != (shard.compression is None):
        found.append("has a compression without a compressed file, or the other way round")
    if shard.codec not in CODECS:
        found.append(f"compression is {shard.codec}, expected {', '.join(CODECS[1:])}")
    if shard.raw_data.bytes >> 32:
        found.append(
            f"has {shard.raw_data.bytes} bytes; offsets have 32 bits, so that a shard of 4 GiB and "
            "more is lost"
        )
    for entry in filter(None, (shard.raw_data, shard.zip_data)):
        name = Path(entry.basename)
        inside = not name.is_absolute() and ".." not in name.parts
        if not (inside and name.name and entry.basename.isprintable()):
            found.append(f"its file {entry.basename!r} is not a path in the data set")
    return found


def _column_problems(columns: Columns) -> list[str]:
    found = []
    parts = (columns.column_names, columns.column_encodings, columns.column_sizes)
    if len({len(part) for part in parts}) > 1:
        found.append("names, encodings and sizes of its columns are not equally many")
    if len(set(columns.column_names)) < len(columns.column_names):
        found.append("has two columns of one name")
    return found


def _repeated(shards: tuple[ShardEntry, ...]) -> list[str]:
    counts = Counter(os.path.normpath(shard.raw_data.basename) for shard in shards)
    twice = [name for name, count in counts.items() if count > 1]
    if not twice:
        return []
    return [
        f"names {twice[0]} {counts[twice[0]]} times, and {len(twice) - 1} others; merge_index of "
        "mosaicml-streaming loses directories (its issue 959): give the directories themselves"
    ]
