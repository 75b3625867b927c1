"""The place of each array in the cache file: a pure function of the plan, for any number of ranks.

Units follow one another: a large section or blend alone, or small ones together. The arrays of one
name in a unit are one HDF5 dataset, so that thousands of sections take few. A unit starts at a
grain, and so does each array that several ranks write, in whole stripes: no two ranks ever write
into the same grain, which a filesystem with close-to-open consistency needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from distcache.plan.model import STRIPE, BlendPlan, SectionPlan, nbytes_of
from distcache.plan.orders import ORDERS

ALIGNMENT: Final = 64  # bytes: of every dataset; a cache line
# What clients of network filesystems keep as a whole: up to 64 KiB of a page of memory, and 128 KiB
# in GlusterFS's cache, where what another client has written later may be seen late.
GRAIN: Final = 1 << 17
SMALL: Final = 1 << 20  # bytes of a file that one rank reads back, whatever its grains
# Steps of a blend: slices are multiples of it, so that those of both arrays start with a stripe.
BLEND_SLICE: Final = STRIPE // 2
UNIT_FULL: Final = 4 * STRIPE
SPLITTABLE_FROM: Final = 32 * STRIPE
# HDF5 takes some 400 bytes per dataset for its object header, link and B-tree entry, also for those
# of padding (`distcache.cache.skeleton`); what is left goes to the tables, and grows in steps.
METADATA_PER_DATASET: Final = 640
METADATA_PER_PADDED: Final = 410
METADATA_BASE: Final = 24 << 10


class ArrayPlace(msgspec.Struct, frozen=True):
    """An array's place in the file: its dtype, shape, and offset and size in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class Unit(msgspec.Struct, frozen=True):
    """Items that are written by one rank, or, if splittable, one section written by several."""

    items: tuple[int, ...]  # indices into `Plan.items`
    # the bytes of the file that the unit has for itself; no other has bytes of its grains
    begin: int
    end: int
    splittable: bool  # whether it is one large section, whose shuffle can be split
    is_large: bool  # whether it is one item, of which several ranks may write slices


class Dataset(msgspec.Struct, frozen=True):
    """The arrays of one name of a unit: one dataset of HDF5."""

    unit: int  # index into `Layout.units`
    place: ArrayPlace  # place of all arrays of the dataset, one after the other


class Layout(msgspec.Struct, frozen=True):
    """All places."""

    data_begin: int  # first byte that an array may have; HDF5's own metadata is before it
    arrays: tuple[tuple[ArrayPlace, ...], ...]  # the arrays of each of `Plan.items`
    units: tuple[Unit, ...]  # units in the order of the file
    datasets: tuple[Dataset, ...]  # datasets in the order of the file
    tables_begin: int  # start of the tables


def align(offset: int, alignment: int) -> int:
    """Return the smallest multiple of an alignment that is not below an offset."""
    return -(-offset // alignment) * alignment


def make_layout(items: Sequence[SectionPlan | BlendPlan]) -> Layout:
    """Give every array its place.

    Parameters
    ----------
    items : sequence of SectionPlan or BlendPlan
        Items in the order of the file.

    Returns
    -------
    Layout
        Equal for equal items.
    """
    groups = list(_groups(items))
    data_begin = _metadata_bytes(items, groups)
    arrays: list[tuple[ArrayPlace, ...]] = []
    datasets: list[Dataset] = []
    units: list[Unit] = []
    offset = data_begin
    for group in groups:
        first = items[group[0]]
        begin = offset if not units else align(offset, GRAIN)
        alignment = GRAIN if is_large(first) else ALIGNMENT
        found = list(_place([items[index] for index in group], begin, alignment))
        arrays += _by_item(items, group, found)
        datasets += [Dataset(len(units), _joined(places)) for places in found]
        offset = max(places[-1].offset + places[-1].nbytes for places in found)
        section = first if isinstance(first, SectionPlan) and is_large(first) else None
        splittable = section is not None and ORDERS[section.order].can_be_split
        units.append(Unit(group, begin, offset, splittable, is_large(first)))
    tables_begin = align(offset, GRAIN if offset > SMALL else ALIGNMENT)
    return Layout(data_begin, tuple(arrays), tuple(units), tuple(datasets), tables_begin)


def _metadata_bytes(
    items: Sequence[SectionPlan | BlendPlan], groups: Sequence[tuple[int, ...]]
) -> int:
    """Return the bytes that are left for HDF5's metadata before the arrays."""
    counts = [len({name for index in group for name in items[index].arrays}) for group in groups]
    # Before each array of a large item, and before the first one of small items.
    padding = sum(
        count if is_large(items[group[0]]) else 1
        for count, group in zip(counts, groups, strict=True)
    )
    datasets = sum(counts)
    most = max(METADATA_PER_DATASET * datasets, METADATA_PER_PADDED * (datasets + padding))
    return align(METADATA_BASE + most, ALIGNMENT)


def _groups(items: Sequence[SectionPlan | BlendPlan]) -> Iterator[tuple[int, ...]]:
    """Yield the items of each unit: a large one alone, or small ones up to a size."""
    pending: list[int] = []
    size = 0
    for index, item in enumerate(items):
        large = is_large(item)
        if pending and (large or size >= UNIT_FULL):
            yield tuple(pending)
            pending, size = [], 0
        if large:
            yield (index,)
        else:
            pending.append(index)
            size += _size(item)
    if pending:
        yield tuple(pending)


def is_large(item: SectionPlan | BlendPlan) -> bool:
    """Return whether several ranks may write an item."""
    if isinstance(item, BlendPlan):
        return item.size > BLEND_SLICE
    return _size(item) >= SPLITTABLE_FROM


def _size(item: SectionPlan | BlendPlan) -> int:
    return sum(nbytes_of(dtype, shape) for dtype, shape in item.arrays.values())


def _place(
    members: Sequence[SectionPlan | BlendPlan], offset: int, alignment: int
) -> Iterator[list[ArrayPlace]]:
    """Yield the places of the arrays of each name, in the order of the members."""
    names = dict.fromkeys(name for member in members for name in member.arrays)
    for name in names:
        offset = align(offset, alignment)
        places = []
        for member in members:
            if name in member.arrays:
                dtype, shape = member.arrays[name]
                places.append(ArrayPlace(name, dtype, shape, offset, nbytes_of(dtype, shape)))
                offset += places[-1].nbytes
        yield places


def _by_item(
    items: Sequence[SectionPlan | BlendPlan],
    group: Sequence[int],
    found: Sequence[Sequence[ArrayPlace]],
) -> Iterator[tuple[ArrayPlace, ...]]:
    """Yield the places of each item of a unit, in the order of its arrays."""
    rest = {places[0].name: iter(places) for places in found}
    for index in group:
        yield tuple(next(rest[name]) for name in items[index].arrays)


def _joined(places: Sequence[ArrayPlace]) -> ArrayPlace:
    """Return the place of arrays that follow one another, which small ones of a name can."""
    first = places[0]
    assert all(place.dtype == first.dtype for place in places), "small arrays have one type"
    rows = sum(place.shape[0] for place in places)
    nbytes = sum(place.nbytes for place in places)
    return ArrayPlace(first.name, first.dtype, (rows, *first.shape[1:]), first.offset, nbytes)
