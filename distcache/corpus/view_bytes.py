"""The bytes of a corpus's tokens in the order of its sequences, wherever a view has them."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from distcache.corpus.corpus import CopySource
from distcache.corpus.idx import ITEM_TYPES, bin_path
from distcache.corpus.mds.shard_table import ShardTable, has_table, read_table, shards_at
from distcache.corpus.mds.stored_shard import indexed_pieces, indexed_shard
from distcache.errors import CorpusError
from distcache.kernels import read_ranges
from distcache.storage.files import FileVersion, closing_fd, open_regular
from distcache.storage.place import GAP_BYTES, PIECE_BYTES, Place, join_ranges, open_place
from distcache.storage.url import is_url
from distcache.storage.watchdog import tick

BLOCK_SEQUENCES: Final = 1 << 18  # of a view, at a time

# Ranges of bytes: where they begin, and their sizes.
Ranges = tuple[NDArray[np.int64], NDArray[np.int64]]


def clip(ranges: Ranges, ends: NDArray[np.int64], low: int, high: int) -> Ranges:
    """Return the ranges that make up bytes [low, high) of some that follow one another.

    Parameters
    ----------
    ranges : Ranges
        None empty.
    ends : ndarray of int64
        Cumulative sums of their sizes.
    low, high : int
        Bytes; low is below high, and high not beyond the last end.
    """
    first = int(np.searchsorted(ends, low, "right"))
    last = int(np.searchsorted(ends, high, "left")) + 1
    begins, sizes = (part[first:last].copy() for part in ranges)
    skipped = low - (int(ends[first]) - int(sizes[0]))
    begins[0] += skipped
    sizes[0] -= skipped
    sizes[-1] -= int(ends[last - 1]) - high
    return begins, sizes


def token_pieces(
    source: CopySource, low: int, high: int, room: NDArray[np.uint8]
) -> Iterator[NDArray[np.uint8]]:
    """Yield bytes [low, high) of all tokens, in pieces that are valid until the next.

    Parameters
    ----------
    source : CopySource
        The corpus.
    low, high : int
        Range in bytes of the source's tokens, one sequence after the other.
    room : ndarray of uint8
        Receives each piece; all but the last of a run of sequences fill it.

    Raises
    ------
    CorpusError
        If the `.bin` has become shorter, or a shard is not the one that was indexed;
        `ObjectChanged` if it is another object than was examined.
    OSError
        If it cannot be read.
    """
    with open_tokens(source.prefix, source.bin_version) as read:
        for ranges in _ranges(source, low, high):
            ends = np.cumsum(ranges[1])
            for begin in range(0, int(ends[-1]) if len(ends) else 0, len(room)):
                end = min(begin + len(room), int(ends[-1]))
                piece = room[: end - begin]
                read(clip(ranges, ends, begin, end), piece)
                tick()
                yield piece


@contextlib.contextmanager
def open_tokens(
    prefix: str, version: FileVersion | None
) -> Iterator[Callable[[Ranges, NDArray[np.uint8]], None]]:
    """Open a corpus, and yield the function that reads ranges of its bytes into an array.

    Parameters
    ----------
    prefix : str
        Prefix of the corpus.
    version : FileVersion or None
        Version of the `.bin` in a bucket that was examined, if it was.

    Yields
    ------
    callable
        Takes ranges, none empty, and an array of uint8 that they fill. It raises as `token_pieces`.
    """
    path = bin_path(prefix)
    if has_table(prefix):
        table = read_table(prefix)
        yield partial(_read_shards, table, functools.lru_cache(1)(partial(_raw_shard, table)))
    elif is_url(path):
        with open_place(path, version) as place:
            yield partial(_read_object, place)
    else:
        with closing_fd(open_regular(path)) as descriptor:
            yield partial(_read_file, path, descriptor)


def _read_file(path: str, descriptor: int, ranges: Ranges, out: NDArray[np.uint8]) -> None:
    _, error = read_ranges(descriptor, *ranges, out)
    if error < 0:
        raise CorpusError(f"{path}: was truncated while it was read")
    if error:
        raise OSError(error, os.strerror(error), path)


def _read_object(place: Place, ranges: Ranges, out: NDArray[np.uint8]) -> None:
    firsts = np.cumsum(ranges[1]) - ranges[1]
    wanted = list(zip(ranges[0].tolist(), ranges[1].tolist(), strict=True))
    for joined in join_ranges(wanted, GAP_BYTES, PIECE_BYTES):
        data = np.empty(joined.end - joined.begin, np.uint8)
        place.read_into(data, joined.begin)
        for member in joined.members:
            begin, size = wanted[member]
            own = data[begin - joined.begin :][:size]
            out[firsts[member] : firsts[member] + size] = own


def _read_shards(
    table: ShardTable,
    raw_shard: Callable[[int], NDArray[np.uint8]],
    ranges: Ranges,
    out: NDArray[np.uint8],
) -> None:
    bases = table.rows["base"].astype(np.int64)
    shards = shards_at(bases, ranges[0]).tolist()
    at = 0
    for shard, begin, size in zip(shards, ranges[0].tolist(), ranges[1].tolist(), strict=True):
        low = begin - int(bases[shard])
        out[at : at + size] = raw_shard(shard)[low : low + size]
        at += size


def _raw_shard(table: ShardTable, shard: int) -> NDArray[np.uint8]:
    """Return the bytes of a raw shard, whose digest is right."""
    row = table.rows[shard]
    raw = np.empty(int(row["raw_size"]), np.uint8)
    done = 0
    for piece in indexed_pieces(*indexed_shard(row, table.path_of(shard))):
        raw[done : done + piece.size] = piece
        done += piece.size
    return raw


def _ranges(source: CopySource, low: int, high: int) -> Iterator[Ranges]:
    """Yield the ranges of the `.bin` that hold bytes [low, high) of the tokens, none empty."""
    if low >= high:
        return
    if not source.view:
        yield np.array([low]), np.array([high - low])
        return
    assert source.idx is not None, "a view has an index"
    item = ITEM_TYPES[source.type_code].itemsize
    position = 0
    for first in range(0, len(source.lengths), BLOCK_SEQUENCES):
        some = slice(first, first + BLOCK_SEQUENCES)
        sizes = source.lengths[some].astype(np.int64) * item
        total = int(sizes.sum())
        if total and position + total > low and position < high:
            full = np.flatnonzero(sizes)
            ranges = (source.idx.offsets[some][full], sizes[full])
            begin, end = max(low - position, 0), min(high - position, total)
            yield clip(ranges, np.cumsum(ranges[1]), begin, end)
        position += total
    source.idx.require_intact()
