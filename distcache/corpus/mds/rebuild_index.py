"""Make a lost `index.json` again: the headers of shards say all that it said, but for digests."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from distcache.corpus.mds.codecs import FileSource, unpack_front
from distcache.corpus.mds.index_json import CODECS, INDEX, Columns, read_index
from distcache.corpus.mds.shard_header import offsets_of, offsets_size
from distcache.errors import ConfigError, CorpusError, NotReady
from distcache.storage.files import (
    atomic_write,
    closing_fd,
    make_directories,
    open_regular,
    read_range,
)
from distcache.storage.threads import decodable, map_in_threads

NUMBERED: Final = re.compile(r"shard\.(\d+)\.mds")
MOST_COLUMNS: Final = 1 << 20  # bytes of the description of columns


@decodable
class _ShardHeader(Columns, frozen=True, kw_only=True):
    """The JSON in the header of a shard (mosaicml-streaming, format/mds/writer.py)."""

    version: int = 2
    format: str = "mds"
    compression: str | None = None
    hashes: tuple[str, ...] = ()
    size_limit: int | str | None = None


class Rebuilt(msgspec.Struct, frozen=True):
    """An `index.json` that was made again: its path, and the shards in it."""

    path: str
    shards: int


def rebuild_index(directory: str, threads: int, advance: Callable[[int], object]) -> Rebuilt:
    """Write the `index.json` of a directory of shards that has none.

    Parameters
    ----------
    directory : str
        Directory with files whose names end with ``.mds``, or with ``.mds`` and a
        compression.
    threads : int
        Shards that are read at a time.
    advance : callable
        Called with 1 for each shard that has been read.

    Raises
    ------
    NotReady
        If there is no shard.
    ConfigError
        If there is an `index.json`.
    CorpusError
        If a shard is damaged, or if one is missing by the numbers of the others.
    """
    path = os.path.join(directory, INDEX)
    if os.path.lexists(path):
        raise ConfigError(f"{path}: exists; remove it first, if it is the wrong one")
    files = _shards(directory)
    if not files:
        raise NotReady(f"{directory}: has no file of a shard: NAME.mds, or NAME.mds.zstd and so on")

    _require_all_numbers(directory, files)

    def entry_of(names: tuple[str, str, str]) -> dict[str, Any]:
        found = _entry(directory, *names)
        advance(1)
        return found

    shards = map_in_threads(entry_of, files, threads)
    document = {"version": 2, "shards": list(shards)}
    make_directories(Path(directory))
    with atomic_write(path) as stream:
        stream.write(msgspec.json.encode(document))
    return Rebuilt(path, len(read_index(directory).shards))  # what is written can be read


def _shards(directory: str) -> list[tuple[str, str, str]]:
    """Return the raw and the packed name of each shard, empty without one, and the codec."""
    found: dict[str, tuple[str, str, str]] = {}
    try:
        names = sorted(os.listdir(directory))
    except OSError as error:
        raise NotReady(f"{directory}: cannot be read: {error.strerror}") from error
    for name in names:
        for codec in CODECS:
            suffix = f".mds.{codec}" if codec else ".mds"
            if name.endswith(suffix) and not name.startswith("."):
                raw = name.removesuffix(f".{codec}") if codec else name
                before = found.get(raw, ("", "", ""))
                found[raw] = (before[0], name, codec) if codec else (name, *before[1:])
    return [found[raw] for raw in sorted(found)]


def _require_all_numbers(directory: str, files: list[tuple[str, str, str]]) -> None:
    """Refuse a gap in the numbers of shards, which writers count from 0 (shard.00000.mds)."""
    names = [raw or packed for raw, packed, _ in files]
    numbers = [NUMBERED.match(name) for name in names]
    found = {int(number[1]) for number in numbers if number is not None}
    lost = max(found, default=-1) + 1 - len(found)
    if len(found) < len(names) or lost > len(found):
        return  # named otherwise, as by dates
    if lost:
        first = next(number for number in itertools.count() if number not in found)
        raise CorpusError(
            f"{directory}: shard {first} is missing, of {max(found) + 1} by the numbers of the "
            f"others ({lost} are missing); bring it back, or rename the shards"
        )


def _entry(directory: str, raw: str, packed: str, codec: str) -> dict[str, Any]:
    """Return what `index.json` says of a shard."""
    path = os.path.join(directory, raw or packed)
    try:
        with closing_fd(open_regular(path)) as descriptor:
            front = _front(descriptor, "" if raw else codec)
            stored = os.fstat(descriptor).st_size
    except (OSError, EOFError) as error:
        raise CorpusError(f"{path}: cannot be read: {error}") from error
    samples, size, header = _header(front, path)
    if raw and stored != size:
        raise CorpusError(f"{path}: has {stored} bytes, its header says {size}")
    if packed:
        stored = Path(directory, packed).stat().st_size
    return {name: getattr(header, name) for name in header.__struct_fields__} | {
        "compression": (header.compression or codec) if packed else None,
        "samples": samples,
        "raw_data": {
            "basename": raw or packed.removesuffix(f".{codec}"),
            "bytes": size,
            "hashes": {},
        },
        "zip_data": {"basename": packed, "bytes": stored, "hashes": {}} if packed else None,
    }


def _front(descriptor: int, codec: str) -> bytes:
    """Return the bytes before the first sample of a shard, and perhaps more."""
    stored = os.fstat(descriptor).st_size

    def first(size: int) -> bytes:
        if not codec:
            return read_range(descriptor, 0, min(size, stored))
        return unpack_front(codec, FileSource(descriptor, stored), None, size)

    return first(offsets_size(int.from_bytes(first(4), "little")) + MOST_COLUMNS)


def _header(front: bytes, path: str) -> tuple[int, int, _ShardHeader]:
    """Return the samples, the bytes and the columns of a shard."""
    samples = int.from_bytes(front[:4], "little")
    begin = offsets_size(samples)
    if len(front) < begin:
        raise CorpusError(f"{path}: ends within the offsets of its samples")
    offsets = offsets_of(np.frombuffer(front, np.uint8), samples)
    try:
        header = msgspec.json.decode(front[begin : int(offsets[0])], type=_ShardHeader)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorpusError(f"{path}: the description of its columns is damaged: {error}") from error
    return samples, int(offsets[-1]), header
