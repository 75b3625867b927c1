"""Arrays of a build: in memory, and in the unfinished cache, with their digests."""

from __future__ import annotations

import contextlib
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distcache.cache.digests import array_digest, leaves_of, read_pieces
from distcache.cache.format import LEAF_SIZE
from distcache.plan.layout import ArrayPlace
from distcache.plan.memory import CHUNK_BYTES, MAPPED_FROM
from distcache.plan.model import STRIPE
from distcache.storage.unfinished_file import UnfinishedFile


class LargeArray:
    """An array, in huge pages if it is large, whose memory can be released piece by piece.

    The page cache takes the released pages for what is written next. On virtual machines, where
    touching new memory is expensive, that makes writing several times faster.

    Parameters
    ----------
    size : int
        Elements.
    dtype : type
        Type of the elements.
    """

    def __init__(self, size: int, dtype: type = np.int32) -> None:
        self._map: mmap.mmap | None = None
        self._itemsize = np.dtype(dtype).itemsize
        if self._itemsize * size < MAPPED_FROM:
            self.values: NDArray[Any] = np.empty(size, dtype)
        else:
            self._map = mmap.mmap(-1, self._itemsize * size, flags=mmap.MAP_PRIVATE)
            with contextlib.suppress(OSError):  # the kernel may have no huge pages
                self._map.madvise(mmap.MADV_HUGEPAGE)
            self.values = np.frombuffer(self._map, dtype, size)

    def release(self, begin: int, end: int) -> None:
        """Release positions [begin, end), as far as they fill pages."""
        first = -(-self._itemsize * begin // mmap.PAGESIZE) * mmap.PAGESIZE
        last = self._itemsize * end // mmap.PAGESIZE * mmap.PAGESIZE
        if self._map is not None and first < last:
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)


class ArrayWriter:
    """Writes an array, or a slice of one, from pieces of any size, and keeps its leaf digests.

    Whole stripes are written, but for the end; pieces of whole stripes are not copied.

    Parameters
    ----------
    file : UnfinishedFile
        Unfinished cache to write to.
    place : ArrayPlace
        Place of the array in the file.
    begin : int
        Start of the slice in the array, in bytes; a multiple of `LEAF_SIZE`, unless the slice is
        empty.
    """

    def __init__(self, file: UnfinishedFile, place: ArrayPlace, begin: int = 0) -> None:
        self._file = file
        self._place = place
        self._next = begin
        self._leaves: list[NDArray[np.uint64]] = []
        self._held: list[NDArray[np.uint8]] = []
        self._count = 0  # bytes that are held, fewer than a stripe

    def append(self, piece: NDArray[Any]) -> None:
        """Append the next piece, contiguous, which is not kept."""
        flat = piece.reshape(-1).view(np.uint8)
        missing = STRIPE - self._count
        if self._count and flat.size >= missing:
            self._hold(flat[:missing])
            self._write_held()
            flat = flat[missing:]
        whole = 0 if self._count else flat.size // STRIPE * STRIPE
        self._write(flat[:whole])
        self._hold(flat[whole:])

    def leaves(self) -> NDArray[np.uint64]:
        """Write what is left, and return the leaf digests of everything."""
        self._write_held()
        return np.concatenate([np.empty(0, np.uint64), *self._leaves])

    def finish(self) -> str:
        """Write what is left, and return the digest of the whole array."""
        digest = array_digest(self.leaves())
        assert self._next == self._place.nbytes, f"{self._place.name} is not written whole"
        return digest

    def _hold(self, flat: NDArray[np.uint8]) -> None:
        if flat.size:
            self._held.append(flat.copy())
            self._count += flat.size

    def _write_held(self) -> None:
        held, self._held, self._count = self._held, [], 0
        if held:
            self._write(np.concatenate(held))

    def _write(self, flat: NDArray[np.uint8]) -> None:
        if flat.size:
            assert self._next % LEAF_SIZE == 0, "only the last piece may end within a leaf"
            self._file.write(self._place.offset + self._next, flat)
            self._leaves.append(leaves_of(flat))
            self._next += flat.size


def write_in_chunks(file: UnfinishedFile, place: ArrayPlace, array: NDArray[Any]) -> ArrayWriter:
    """Write a whole array, contiguous, and return the writer, which has its digests."""
    writer = ArrayWriter(file, place)
    flat = array.reshape(-1)
    step = CHUNK_BYTES // array.itemsize
    for begin in range(0, flat.size, step):
        writer.append(flat[begin : begin + step])
    return writer


def read_digest(file: UnfinishedFile, place: ArrayPlace) -> str:
    """Return the digest of an array in the file."""
    pieces = read_pieces(file.descriptor, place.offset, place.offset + place.nbytes)
    leaves = [leaves_of(piece) for piece in pieces]
    return array_digest(np.concatenate([*leaves, np.empty(0, np.uint64)]))
