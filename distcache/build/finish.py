"""Make a finished cache out of the unfinished file: front, tables, header, name."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import xxhash

from distcache.build.data_file import DataFile
from distcache.build.job import Job
from distcache.build.tables import compose_tables, file_size, table_bytes, table_places
from distcache.cache import open_cache
from distcache.cache.datasets import DatasetPlace
from distcache.cache.format import Header
from distcache.files import publish
from distcache.plan.layout import Layout
from distcache.plan.model import Plan

__all__ = ["finish", "lay_out"]


def lay_out(job: Job, scratch: str) -> None:
    """Write HDF5's metadata, and zeros between arrays, whatever was there. Rank 0 only.

    Parameters
    ----------
    job : Job
        The build.
    scratch : str
        Path of a file to make and remove.
    """
    from distcache.cache.skeleton import front_bytes  # noqa: PLC0415  h5py is rank 0's alone

    front = front_bytes(scratch, job.layout.data_begin, dataset_places(job.plan, job.layout))
    with DataFile(job.data) as file:
        file.write(0, front)
        for begin, end in _gaps(job.layout):
            file.write(begin, bytes(end - begin))
        file.sync()


def finish(job: Job, blocks: Sequence[int], final: Path) -> bool:
    """Write the tables and the header, check that the file opens, and publish it. Rank 0 only.

    Parameters
    ----------
    job : Job
        All of its items are built.
    blocks : sequence of int
        The digest of every block.
    final : Path
        The cache's path.

    Returns
    -------
    bool
        False if another build has published meanwhile.
    """
    places = table_places(job.plan, job.layout)
    tables = compose_tables(job.plan, job.layout, job.digests, blocks)
    begin = job.layout.tables_begin
    content = table_bytes(tables, places, begin)
    header = Header(
        key=job.plan.key,
        file_size=file_size(places),
        tables_begin=begin,
        tables_digest=xxhash.xxh3_128_digest(content),
        tables=places,
    )
    with DataFile(job.data) as file:
        file.write(begin, content)
        file.write(0, header.pack())
        file.truncate(header.file_size)
        file.sync()
    open_cache(job.data)
    published = publish(job.data, final)
    if published:
        final.chmod(final.stat().st_mode & 0o444)
    return published


def dataset_places(plan: Plan, layout: Layout) -> list[DatasetPlace]:
    """Return every HDF5 dataset in the order of the file: arrays by name and row, then tables."""
    arrays = [
        DatasetPlace(place.name, str(_row(plan, item)), place.dtype, place.shape, place.offset)
        for item, places in enumerate(layout.arrays)
        for place in places
    ]
    tables = [
        DatasetPlace("tables", name, "", (place.rows,), place.offset)
        for name, place in table_places(plan, layout).items()
    ]
    return arrays + tables


def _gaps(layout: Layout) -> Iterator[tuple[int, int]]:
    """Yield the bytes [begin, end) between arrays, and between the last one and the tables."""
    end = layout.data_begin
    for place in itertools.chain(*layout.arrays):
        if place.offset > end:
            yield end, place.offset
        end = place.offset + place.nbytes
    if layout.tables_begin > end:
        yield end, layout.tables_begin


def _row(plan: Plan, item: int) -> int:
    return item if item < len(plan.sections) else item - len(plan.sections)
