"""Lay out an HDF5 file whose datasets lie at places decided beforehand.

All datasets are created first, which puts HDF5's metadata at the front of the file. Then storage is
allocated for one after the other: without aggregation HDF5 takes it from the end of the file, and a
dataset of padding moves the next one to its place. So the bytes up to the first array are all that
must be copied to lay out another file.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

import h5py
import msgspec
import numpy as np

from distcache.cache.format import HEADER_SIZE, TABLES
from distcache.errors import DistcacheError

__all__ = ["DatasetPlace", "front_bytes"]


class DatasetPlace(msgspec.Struct, frozen=True):
    """A dataset's group and name, dtype, shape and wanted byte offset."""

    group: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def type(self) -> np.dtype[Any]:
        """The dtype; tables have one of their own."""
        return TABLES[self.name] if self.group == "tables" else np.dtype(self.dtype)

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return self.type.itemsize * math.prod(self.shape)


def front_bytes(scratch: str, data_begin: int, wanted: Sequence[DatasetPlace]) -> bytes:
    """Lay out a sparse file and return what HDF5 wrote before the first array.

    Parameters
    ----------
    scratch : str
        Path of a file to make and remove; it takes no disk space for the data.
    data_begin : int
        Where the data starts.
    wanted : sequence of DatasetPlace
        Ascending, none before `data_begin`.

    Returns
    -------
    bytes
        The first `data_begin` bytes: a user block of zeros, then HDF5's metadata.

    Raises
    ------
    DistcacheError
        If HDF5 puts a dataset anywhere else, or its metadata does not fit before the data.
    """
    with contextlib.closing(_Writer(scratch)) as writer:
        front = DatasetPlace("padding", "front", "u1", (1,), data_begin - 1)
        writer.create_all(_with_padding(front, wanted))
        metadata_end = writer.allocate_next()
    if metadata_end >= data_begin:
        raise DistcacheError(f"HDF5's metadata ends at byte {metadata_end}, after {data_begin}")
    front = DatasetPlace("padding", "front", "u1", (data_begin - metadata_end,), metadata_end)
    with contextlib.closing(_Writer(scratch)) as writer:
        writer.create_all(_with_padding(front, wanted))
        writer.allocate_all()
    size = max((place.offset + place.nbytes for place in wanted), default=data_begin)
    try:
        if (found := os.stat(scratch).st_size) != size:
            raise DistcacheError(f"HDF5 made a file of {found} bytes, expected {size}")
        with open(scratch, "rb") as stream:
            return stream.read(data_begin).ljust(data_begin, b"\x00")
    finally:
        os.unlink(scratch)


def _with_padding(front: DatasetPlace, wanted: Sequence[DatasetPlace]) -> Iterator[DatasetPlace]:
    """Yield the datasets, and one of padding before each that does not follow the last."""
    yield front
    end = front.offset + front.nbytes
    for place in wanted:
        if place.nbytes and place.offset > end:
            yield DatasetPlace("padding", str(end), "u1", (place.offset - end,), end)
        yield place
        if place.nbytes:
            end = place.offset + place.nbytes


class _Writer:
    def __init__(self, path: str) -> None:
        creation = h5py.h5p.create(h5py.h5p.FILE_CREATE)
        creation.set_userblock(HEADER_SIZE)
        creation.set_obj_track_times(False)  # equal caches are equal to the byte
        creation.set_file_space_strategy(h5py.h5f.FSPACE_STRATEGY_NONE, False, 1)
        access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
        access.set_libver_bounds(h5py.h5f.LIBVER_EARLIEST, h5py.h5f.LIBVER_V110)
        access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
        self._file = h5py.h5f.create(os.fsencode(path), h5py.h5f.ACC_TRUNC, creation, access)
        self._group_properties = h5py.h5p.create(h5py.h5p.GROUP_CREATE)
        self._group_properties.set_obj_track_times(False)
        self._properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        self._properties.set_layout(h5py.h5d.CONTIGUOUS)
        self._properties.set_alloc_time(h5py.h5d.ALLOC_TIME_LATE)
        self._properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        self._properties.set_obj_track_times(False)
        self._unallocated: list[tuple[DatasetPlace, Any]] = []

    def create_all(self, places: Sequence[DatasetPlace] | Iterator[DatasetPlace]) -> None:
        """Create datasets without storage."""
        groups: dict[str, Any] = {}
        for place in places:
            if place.group not in groups:
                groups[place.group] = h5py.h5g.create(
                    self._file, place.group.encode(), gcpl=self._group_properties
                )
            kind = h5py.h5t.py_create(place.type, logical=True)
            space = h5py.h5s.create_simple(place.shape)
            made = h5py.h5d.create(
                groups[place.group], place.name.encode(), kind, space, self._properties
            )
            if place.nbytes:
                self._unallocated.append((place, made))
        # HDF5 finds room for some of its metadata only when it writes it.
        h5py.h5f.flush(self._file)
        self._unallocated.reverse()

    def allocate_next(self) -> int:
        """Give the next dataset its storage, by writing its first element; return its offset."""
        _, dataset = self._unallocated.pop()
        space = dataset.get_space()
        space.select_hyperslab((0,) * len(dataset.shape), (1,) * len(dataset.shape))
        dataset.write(h5py.h5s.create_simple((1,)), space, np.zeros(1, dataset.dtype))
        offset: int = dataset.get_offset()
        return offset

    def allocate_all(self) -> None:
        """Give every dataset its storage, and compare its offset with the wanted one."""
        while self._unallocated:
            place = self._unallocated[-1][0]
            if (found := self.allocate_next()) != place.offset:
                raise DistcacheError(
                    f"HDF5 put {place.group}/{place.name} at byte {found}, expected {place.offset}"
                )

    def close(self) -> None:
        """Write everything out."""
        self._unallocated.clear()
        self._file.close()
