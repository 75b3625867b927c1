"""Lay out an HDF5 file whose datasets are at places decided beforehand.

HDF5 takes metadata from one block, which is made to reach up to the first array. Storage comes
from the end of the file, aligned; where more is left out than that, a dataset of padding is put in
between. So the bytes up to the first array are all that must be copied to lay out
another file.

Datasets get their storage when they are created, until the first that is so small that HDF5 would
not align it: from then on the file is reopened, as one in which everything is aligned, and each
dataset gets its storage by writing an element. That takes three times as long.

HDF5 writes to memory, whose place its descriptor is given: after a write that fails, as on a full
disk, it may end the process when it closes the file (HDF5 2.0, h5py 3.16).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np

from distcache.cache.format import HEADER_SIZE, DatasetPlace
from distcache.errors import DistcacheError
from distcache.storage.files import closing_fd, read_range, write_range

# Smaller datasets share a block. Pieces of metadata are smaller than this.
ALIGNED_FROM: Final = 2048  # bytes
ALIGNMENT: Final = 64  # bytes: that of `distcache.plan.layout`


def front_bytes(scratch: str, data_begin: int, wanted: Sequence[DatasetPlace]) -> bytes:
    """Lay out a sparse file and return what HDF5 wrote before the first array.

    Parameters
    ----------
    scratch : str
        Path of a file to make and remove; it takes no disk space for the data.
    data_begin : int
        Start of the data; a multiple of `ALIGNMENT`.
    wanted : sequence of DatasetPlace
        Ascending, each at a multiple of it, the first at `data_begin`.

    Returns
    -------
    bytes
        The first `data_begin` bytes: a user block of zeros, then HDF5's metadata.

    Raises
    ------
    DistcacheError
        If HDF5 puts a dataset anywhere else, or its metadata does not fit before the data.
    OSError
        If the scratch file cannot be written.
    """
    places = list(_with_padding(data_begin, wanted))
    stored = [place for place in places if place.nbytes]
    small = (k for k, place in enumerate(stored) if place.nbytes < ALIGNED_FROM)
    early = next(small, len(stored))
    Path(scratch).unlink(missing_ok=True)
    try:
        with closing_fd(os.memfd_create("layout")) as memory:
            first = {place.offset for place in stored[:early]}
            _create_all(scratch, memory, data_begin, places, first)
            if not early:
                _allocate(scratch, memory, data_begin, stored[:1], data_begin)
            _allocate(scratch, memory, data_begin, stored[max(early, 1) :], ALIGNMENT)
            size = max((place.offset + place.nbytes for place in stored), default=data_begin)
            if (made := os.fstat(memory).st_size) != size:
                raise DistcacheError(f"HDF5 made a file of {made} bytes, expected {size}")
            return read_range(memory, 0, data_begin)
    except OSError as error:
        found = re.search(r"errno = (\d+)", str(error))  # in the words of HDF5
        number = int(found[1]) if found is not None else error.errno
        if number is None:
            raise
        raise OSError(number, os.strerror(number), scratch) from error
    finally:
        Path(scratch).unlink(missing_ok=True)


@contextlib.contextmanager
def _in_memory(file: Any, memory: int) -> Iterator[None]:
    """Let HDF5 write to another file than the one that it has opened, and close it."""
    with contextlib.closing(file):
        os.dup2(memory, file.get_vfd_handle(), inheritable=False)
        yield


def _with_padding(begin: int, wanted: Sequence[DatasetPlace]) -> Iterator[DatasetPlace]:
    """Yield the datasets, and one of padding before each that does not start where it could."""
    end = begin
    for place in wanted:
        start = -(-end // ALIGNMENT) * ALIGNMENT
        if place.nbytes and place.offset > start:
            size = place.offset - start
            yield DatasetPlace("padding", str(start), "u1", (size,), start)
        yield place
        if place.nbytes:
            end = place.offset + place.nbytes


def _access(aligned_from: int, alignment: int, metadata: int) -> Any:
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(h5py.h5f.LIBVER_EARLIEST, h5py.h5f.LIBVER_V110)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    access.set_alignment(aligned_from, alignment)
    access.set_meta_block_size(metadata)
    access.set_file_locking(False, True)  # the workspace is locked, where that is possible
    return access


def _create_all(
    path: str, memory: int, data_begin: int, places: Sequence[DatasetPlace], early: Collection[int]
) -> None:
    """Create the file and all datasets, those at some offsets with storage."""
    creation = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    creation.set_userblock(HEADER_SIZE)
    creation.set_obj_track_times(False)  # equal caches are byte for byte equal
    creation.set_file_space_strategy(h5py.h5f.FSPACE_STRATEGY_AGGR, False, 1)
    access = _access(ALIGNED_FROM, ALIGNMENT, data_begin - HEADER_SIZE)
    file = h5py.h5f.create(os.fsencode(path), h5py.h5f.ACC_EXCL, creation, access)
    write_range(memory, 0, Path(path).read_bytes())  # what HDF5 has written by now
    with _in_memory(file, memory):
        _create_datasets(file, places, early)


def _create_datasets(file: Any, places: Sequence[DatasetPlace], early: Collection[int]) -> None:
    group_properties = h5py.h5p.create(h5py.h5p.GROUP_CREATE)
    group_properties.set_obj_track_times(False)
    at_once, later = (
        _dataset_properties(time) for time in (h5py.h5d.ALLOC_TIME_EARLY, h5py.h5d.ALLOC_TIME_LATE)
    )
    groups: dict[str, Any] = {}
    for place in places:
        if place.group not in groups:
            groups[place.group] = h5py.h5g.create(file, place.group.encode(), gcpl=group_properties)
        stored = place.nbytes and place.offset in early
        dataset = h5py.h5d.create(
            groups[place.group],
            place.name.encode(),
            h5py.h5t.py_create(place.type, logical=True),
            h5py.h5s.create_simple(place.shape),
            at_once if stored else later,
        )
        if stored:
            _require_offset(place, dataset)


def _dataset_properties(allocation: int) -> Any:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.CONTIGUOUS)
    properties.set_alloc_time(allocation)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    properties.set_obj_track_times(False)
    return properties


def _allocate(
    path: str, memory: int, data_begin: int, places: Sequence[DatasetPlace], alignment: int
) -> None:
    """Allocate the storage of datasets by writing one element."""
    with open(path, "wb") as stream:  # HDF5 reads the superblock as it opens it
        stream.write(read_range(memory, 0, min(data_begin, os.fstat(memory).st_size)))
        stream.truncate(os.fstat(memory).st_size)
    file = h5py.h5f.open(os.fsencode(path), h5py.h5f.ACC_RDWR, _access(1, alignment, HEADER_SIZE))
    one = h5py.h5s.create_simple((1,))
    with _in_memory(file, memory):
        for place in places:
            dataset = h5py.h5d.open(file, f"{place.group}/{place.name}".encode())
            space = dataset.get_space()
            space.select_hyperslab((0,) * len(place.shape), (1,) * len(place.shape))
            dataset.write(one, space, np.zeros(1, place.type))
            _require_offset(place, dataset)


def _require_offset(place: DatasetPlace, dataset: Any) -> None:
    if (found := dataset.get_offset()) != place.offset:
        raise DistcacheError(
            f"HDF5 put {place.group}/{place.name} at byte {found}, expected {place.offset}"
        )
