"""The unfinished cache file, in which all ranks write their bytes at the places of the layout."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distcache.cache.digests import array_digest, leaves_of, read_pieces
from distcache.cache.format import LEAF_SIZE
from distcache.errors import BuildInterrupted
from distcache.io.files import no_space_as_error, write_range
from distcache.io.threads import Flusher
from distcache.plan.costs import CHUNK_BYTES
from distcache.plan.layout import ArrayPlace

__all__ = ["ArrayWriter", "DataFile", "read_digest", "write_in_chunks"]


class DataFile(AbstractContextManager["DataFile"]):
    """An open unfinished file. Every rank opens it, and syncs what it has written.

    Parameters
    ----------
    path : str
        A file that exists already.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._abandoned = False
        self._descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._flusher = Flusher(self._descriptor)

    def __exit__(self, *_: object) -> None:
        self._flusher.close()
        os.close(self._descriptor)

    def abandon(self) -> None:
        """Make all further writes fail, so that worker threads stop early."""
        self._abandoned = True

    def sync(self) -> None:
        """Wait until all that was written is on disk."""
        with no_space_as_error(self._path):
            self._flusher.sync()

    def write(self, offset: int, data: bytes | NDArray[Any]) -> None:
        """Write all bytes of an array at a byte offset.

        Raises
        ------
        BuildInterrupted
            If the file has been abandoned.
        """
        if self._abandoned:
            raise BuildInterrupted(f"{self._path}: abandoned")
        with no_space_as_error(self._path):
            write_range(self._descriptor, offset, data)
        self._flusher.written(len(data) if isinstance(data, bytes) else data.nbytes)

    @property
    def descriptor(self) -> int:
        """The open file's descriptor, for reading back."""
        return self._descriptor

    def truncate(self, size: int) -> None:
        """Set the file's length in bytes."""
        os.ftruncate(self._descriptor, size)


class ArrayWriter:
    """Writes an array, or a slice of one, piece by piece, and keeps its leaf digests.

    Parameters
    ----------
    file : DataFile
        Where to write.
    place : ArrayPlace
        Of the array.
    begin : int
        Where in the array the slice starts, in bytes; a multiple of `LEAF_SIZE`.
    """

    def __init__(self, file: DataFile, place: ArrayPlace, begin: int = 0) -> None:
        self._file = file
        self._place = place
        self._next = begin
        self._leaves: list[NDArray[np.uint64]] = []

    def append(self, piece: NDArray[Any]) -> None:
        """Write the next piece; all but the last are multiples of `LEAF_SIZE` bytes."""
        if not piece.size:
            return
        assert self._next % LEAF_SIZE == 0, "only the last piece may end within a leaf"
        flat = piece.reshape(-1).view(np.uint8)
        self._file.write(self._place.offset + self._next, flat)
        self._leaves.append(leaves_of(flat))
        self._next += flat.size

    def leaves(self) -> NDArray[np.uint64]:
        """Return the leaf digests of what was written."""
        return np.concatenate([np.empty(0, np.uint64), *self._leaves])

    def finish(self) -> str:
        """Return the digest of the whole array."""
        assert self._next == self._place.nbytes, f"{self._place.name} is not written whole"
        return array_digest(self.leaves())


def write_in_chunks(file: DataFile, place: ArrayPlace, array: NDArray[Any]) -> ArrayWriter:
    """Write a whole one-dimensional array, and return the writer, which has its digests."""
    writer = ArrayWriter(file, place)
    step = CHUNK_BYTES // array.itemsize
    for begin in range(0, len(array), step):
        writer.append(array[begin : begin + step])
    return writer


def read_digest(file: DataFile, place: ArrayPlace) -> str:
    """Return the digest of an array as it stands in the file."""
    pieces = read_pieces(file.descriptor, place.offset, place.offset + place.nbytes)
    leaves = [leaves_of(piece) for piece in pieces]
    return array_digest(np.concatenate([*leaves, np.empty(0, np.uint64)]))
