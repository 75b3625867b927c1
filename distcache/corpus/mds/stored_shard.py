"""Read a shard or its header from where it is stored, raw or compressed; verify its digests."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from distcache.corpus.mds.codecs import FileSource, unpack
from distcache.corpus.mds.index_json import CODECS, Columns, FileEntry, ShardEntry
from distcache.errors import CorpusError
from distcache.storage.files import closing_fd, open_sized, read_range
from distcache.storage.threads import decodable
from distcache.storage.watchdog import tick

PIECE_BYTES: Final = 1 << 20  # bytes; malloc would map larger ones again each time
XXHASHES: Final = frozenset({"xxh32", "xxh64", "xxh128", "xxh3_64", "xxh3_128"})
MAX_COLUMNS_BYTES: Final = 1 << 20  # bytes of the JSON of a header that are read


class StoredShard(msgspec.Struct, frozen=True):
    """The form of a shard that is read."""

    path: str  # path of the file
    codec: str  # empty if it is raw
    size: int  # bytes of the file
    raw_size: int  # bytes of the raw shard


def find_shard(directory: str, entry: ShardEntry) -> StoredShard:
    """Return the form of a shard that exists, the raw one if both do.

    Raises
    ------
    CorpusError
        If neither is there with the size that the index says.
    """
    problems = []
    size = entry.raw_data.bytes
    for file, codec in ((entry.raw_data, ""), (entry.zip_data, entry.codec)):
        if file is None:
            continue
        path = os.path.join(directory, file.basename)
        try:
            status = os.stat(path)
        except OSError as error:
            problems.append(f"{path}: cannot be read: {error.strerror}")
            continue
        if not stat.S_ISREG(status.st_mode):
            problems.append(f"{path}: is no regular file")
            continue
        if status.st_size == file.bytes:
            return StoredShard(path, codec, file.bytes, size)
        problems.append(f"{path}: has {status.st_size} bytes, the index says {file.bytes}")
    # One form is missing rightly where there is the other: that one is what is wrong.
    wrong = [problem for problem in problems if ": has " in problem]
    raise CorpusError(*(wrong or problems[-1:]))


def raw_pieces(
    stored: StoredShard, zipped: Callable[[Any], object] | None = None
) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of the raw shard, in pieces that stay valid.

    Parameters
    ----------
    stored : StoredShard
        The form that is read.
    zipped : callable or None
        Receives the bytes of the compressed file, as they are read.

    Raises
    ------
    CorpusError
        If the file has another length, or does not decompress to the raw shard's length.
    OSError
        If it cannot be read.
    """
    with _opened(stored) as descriptor:
        if not stored.codec:
            for begin in range(0, stored.size, PIECE_BYTES):
                data = read_range(descriptor, begin, min(begin + PIECE_BYTES, stored.size))
                tick()
                yield np.frombuffer(data, np.uint8)
            return
        source = FileSource(descriptor, stored.size, seen=zipped)
        yield from unpack(stored.codec, source, stored.raw_size, stored.path)
        while zipped is not None and source.read():
            pass  # bytes after the end of the compressed data


@contextmanager
def _opened(stored: StoredShard) -> Iterator[int]:
    descriptor, size = open_sized(stored.path)
    with closing_fd(descriptor):
        if size != stored.size:
            raise CorpusError(f"{stored.path}: has {size} bytes, and had {stored.size}")
        try:
            yield descriptor
        except EOFError as error:
            raise CorpusError(f"{stored.path}: was cut short while it was read") from error


class _Digests:
    """The digests of one form of a shard: our own, and those that its index has."""

    def __init__(self, path: str, file: FileEntry) -> None:
        self._path = path
        self._expected = file.hashes
        self._others = {name: _hasher(path, name) for name in file.hashes}
        self.own = xxhash.xxh3_128()

    def update(self, data: Any) -> None:
        self.own.update(data)
        for hasher in self._others.values():
            hasher.update(data)

    def require(self) -> None:
        for name, hasher in self._others.items():
            if (found := hasher.hexdigest()) != self._expected[name]:
                raise CorpusError(
                    f"{self._path}: its {name} is {found}, the index says {self._expected[name]}"
                )


def _hasher(path: str, name: str) -> Any:
    if name in XXHASHES:
        return getattr(xxhash, name)()
    if name not in hashlib.algorithms_available or name.startswith("shake_"):
        raise CorpusError(f"{path}: the index has a digest of an unknown kind, {name}")
    return hashlib.new(name, usedforsecurity=False)


def read_shard(
    stored: StoredShard, entry: ShardEntry, room: NDArray[np.uint8]
) -> tuple[bytes, bytes]:
    """Read a raw shard whole, and compare the digests that its index has.

    Parameters
    ----------
    stored : StoredShard
        The form that is read.
    entry : ShardEntry
        Entry of the shard in the index.
    room : ndarray of uint8
        Receives the raw shard; of its size.

    Returns
    -------
    raw, zipped : bytes
        XXH3-128 of both forms; zeros for one that was not read.

    Raises
    ------
    CorpusError
        If it is damaged.
    OSError
        If it cannot be read.
    """
    raw = _Digests(stored.path, entry.raw_data)
    if not stored.codec:
        for piece in _read_into(stored, room):
            raw.update(piece)
        raw.require()
        return raw.own.digest(), bytes(16)
    zipped = _Digests(stored.path, entry.zip_data or FileEntry("", 0, {}))
    done = 0
    for piece in raw_pieces(stored, zipped.update):
        raw.update(piece)
        room[done : done + len(piece)] = piece
        done += len(piece)
    zipped.require()
    raw.require()
    return raw.own.digest(), zipped.own.digest()


def _read_into(stored: StoredShard, room: NDArray[np.uint8]) -> Iterator[NDArray[np.uint8]]:
    """Read a raw file whole, and yield its pieces."""
    with _opened(stored) as descriptor:
        done = 0
        while done < stored.size:
            count = os.preadv(descriptor, [room[done : done + PIECE_BYTES].data], done)
            if not count:
                raise EOFError
            tick()
            yield room[done : done + count]
            done += count


def indexed_shard(row: Any, path: str) -> tuple[StoredShard, bytes]:
    """Return the form of a shard, and the XXH3-128 of the raw one.

    Parameters
    ----------
    row : row of `shard_table.ROWS`
        Row of the shard.
    path : str
        Path of the shard's file.
    """
    raw_size = int(row["raw_size"])
    size = int(row["zip_size"]) if row["codec"] else raw_size
    digest = row["raw_digest"].tobytes()
    return StoredShard(path, CODECS[int(row["codec"])], size, raw_size), digest


def indexed_pieces(stored: StoredShard, digest: bytes) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of a raw shard, in pieces that stay valid.

    Parameters
    ----------
    stored : StoredShard
        The form that is read.
    digest : bytes
        XXH3-128 of the raw shard.

    Raises
    ------
    CorpusError
        If it cannot be read, or, after its last piece, if its digest differs.
    """
    found = xxhash.xxh3_128()
    try:
        for piece in raw_pieces(stored):
            found.update(piece.data)
            yield piece
    except OSError as error:
        raise CorpusError(f"{stored.path}: cannot be read: {error.strerror}") from error
    if found.digest() != digest:
        raise CorpusError(
            f"{stored.path}: is not the shard that was indexed: its digest differs; index the data "
            "set again, and build again"
        )


@decodable
class _Header(Columns, frozen=True):
    """What is read of the JSON in a header; it has more."""


def offsets_size(records: int) -> int:
    """Return the bytes before the JSON of a header: the number of records, and their offsets."""
    return 4 * (records + 2)


def offsets_of(front: NDArray[np.uint8], records: int) -> NDArray[np.int64]:
    """Return the offsets of records, and the end of the last; the front holds them all."""
    end = offsets_size(records)
    offsets: NDArray[np.int64] = front[4:end].view("<u4").astype(np.int64)
    return offsets


def header_problem(front: NDArray[np.uint8], entry: ShardEntry) -> str:
    """Return what is wrong with the header of a raw shard, or nothing.

    Parameters
    ----------
    front : ndarray of uint8
        The shard's first bytes, as far as its first record, or as many as there are.
    entry : ShardEntry
        Entry of the shard in `index.json`.
    """
    records, json_begin = entry.samples, offsets_size(entry.samples)
    if len(front) < 4:
        return f"has {len(front)} bytes, too few for a header"
    found = int(front[:4].view("<u4")[0])
    if found != records:
        return f"its header says {found} records, the index {records}"
    if len(front) < json_begin:
        return f"ends at byte {len(front)}, within the offsets of {records} records"
    offsets = offsets_of(front, records)
    if problem := _offset_problem(offsets, json_begin, entry.raw_data.bytes):
        return problem
    if len(front) < offsets[0]:
        return f"ends at byte {len(front)}, within the description of its columns"
    return _column_problem(bytes(front[json_begin : int(offsets[0])]), entry)


def _offset_problem(offsets: NDArray[np.int64], json_begin: int, size: int) -> str:
    falls = np.flatnonzero(np.diff(offsets) < 0)
    if len(falls):
        return f"its offsets decrease after record {falls[0]}"
    if offsets[-1] != size:
        return f"its records end at byte {offsets[-1]}, the index says {size}"
    if offsets[0] < json_begin or offsets[0] - json_begin > MAX_COLUMNS_BYTES:
        return (
            f"its first record begins at byte {offsets[0]}, expected {json_begin} and the columns"
        )
    return ""


def _column_problem(text: bytes, entry: ShardEntry) -> str:
    try:
        found = msgspec.json.decode(text, type=_Header)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return f"the description of its columns is damaged: {error}"
    pairs: Sequence[tuple[object, object, str]] = (
        (found.column_names, entry.column_names, "names"),
        (found.column_encodings, entry.column_encodings, "encodings"),
        (found.column_sizes, entry.column_sizes, "sizes"),
    )
    for here, there, what in pairs:
        if here != there:
            return f"the {what} of its columns are {here}, in the index {there}"
    return ""
