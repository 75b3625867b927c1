"""The unfinished cache file: ranks write their bytes at the places that the layout gives them."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from distcache.cache.digests import array_digest, leaves_of
from distcache.cache.format import LEAF_SIZE
from distcache.cache.publish import no_space_as_error
from distcache.errors import DistcacheError
from distcache.plan.layout import ArrayPlace

__all__ = ["ArrayWriter", "DataFile", "read_digest"]

READ_SIZE: Final = 16 * LEAF_SIZE


class DataFile:
    """An open unfinished file. Every rank has its own; closing it syncs what the rank wrote.

    Parameters
    ----------
    path : str
        A file that is there already.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)

    def __enter__(self) -> DataFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                with no_space_as_error(self._path):
                    os.fsync(self._descriptor)
        finally:
            os.close(self._descriptor)

    def write(self, offset: int, data: bytes | NDArray[Any]) -> None:
        """Write all bytes of an array at a byte offset."""
        flat = np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
        done = 0
        with no_space_as_error(self._path):
            while done < flat.size:
                done += os.pwrite(self._descriptor, flat[done:].data, offset + done)

    def read(self, begin: int, end: int) -> NDArray[np.uint8]:
        """Return bytes [begin, end); a file that is shorter is an error."""
        data = np.empty(end - begin, np.uint8)
        done = 0
        while done < data.size:
            count = os.preadv(self._descriptor, [data[done:].data], begin + done)
            if count == 0:
                raise DistcacheError(
                    f"the unfinished file ends at byte {begin + done}, before {end}: another "
                    "process has cut it; run again"
                )
            done += count
        return data

    def truncate(self, size: int) -> None:
        """Set the file's length in bytes."""
        os.ftruncate(self._descriptor, size)


class ArrayWriter:
    """Writes an array piece by piece from its start, and keeps its leaf digests.

    Parameters
    ----------
    file : DataFile
        Where to write.
    place : ArrayPlace
        Of the array.
    """

    def __init__(self, file: DataFile, place: ArrayPlace) -> None:
        self._file = file
        self._place = place
        self._done = 0
        self._leaves: list[NDArray[np.uint64]] = []

    def append(self, piece: NDArray[Any]) -> None:
        """Write the next piece; all but the last are multiples of `LEAF_SIZE` bytes."""
        assert self._done % LEAF_SIZE == 0, "only the last piece may end within a leaf"
        flat = piece.reshape(-1).view(np.uint8)
        self._file.write(self._place.offset + self._done, flat)
        self._leaves.append(leaves_of(flat))
        self._done += flat.size

    def finish(self) -> str:
        """Return the digest of the whole array."""
        assert self._done == self._place.nbytes, f"{self._place.name} is not written whole"
        return array_digest(np.concatenate([*self._leaves, np.empty(0, np.uint64)]))


def read_digest(file: DataFile, place: ArrayPlace) -> str:
    """Return the digest of an array as it stands in the file."""
    end = place.offset + place.nbytes
    leaves = [
        leaves_of(file.read(begin, min(begin + READ_SIZE, end)))
        for begin in range(place.offset, end, READ_SIZE)
    ]
    return array_digest(np.concatenate([*leaves, np.empty(0, np.uint64)]))
