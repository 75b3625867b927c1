"""Where each array lies in the cache file: a pure function of the plan, for any number of ranks.

Every array starts at a page. Arrays that several ranks write start at a stripe of 1 MiB, and
small sections are packed into units that start at one, so that a unit has one writer and no two
ranks ever write into the same stripe. A filesystem with close-to-open consistency needs that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import numpy as np

from distcache.plan.model import BlendPlan, SectionPlan

__all__ = ["PAGE", "STRIPE", "ArrayPlace", "Layout", "Unit", "align", "make_layout", "nbytes_of"]

PAGE: Final = 4096
STRIPE: Final = 1 << 20
UNIT_FULL: Final = 4 * STRIPE
SPLITTABLE_FROM: Final = 32 * STRIPE
# HDF5 takes some 400 bytes per dataset for its object header, link and B-tree entry.
METADATA_PER_ARRAY: Final = 1024
METADATA_BASE: Final = 1 << 16


class ArrayPlace(msgspec.Struct, frozen=True):
    """An array's place in the file: its dtype, shape, and offset and size in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class Unit(msgspec.Struct, frozen=True):
    """Items that are written by one rank, or, if splittable, one section written by several.

    Attributes
    ----------
    items : tuple of int
        Indices into `Plan.items`.
    begin, end : int
        The bytes of the file that the unit has for itself; `begin` is a multiple of `STRIPE`.
    splittable : bool
        Whether it is one large section.
    """

    items: tuple[int, ...]
    begin: int
    end: int
    splittable: bool


class Layout(msgspec.Struct, frozen=True):
    """All places.

    Attributes
    ----------
    data_begin : int
        Where the first array may start; HDF5's own metadata lies before it.
    arrays : tuple of tuple of ArrayPlace
        The arrays of each of `Plan.items`.
    units : tuple of Unit
        In the order of the file.
    tables_begin : int
        Where the tables start.
    """

    data_begin: int
    arrays: tuple[tuple[ArrayPlace, ...], ...]
    units: tuple[Unit, ...]
    tables_begin: int


def align(offset: int, alignment: int) -> int:
    """Return the smallest multiple of an alignment that is not below an offset."""
    return -(-offset // alignment) * alignment


def make_layout(items: Sequence[SectionPlan | BlendPlan]) -> Layout:
    """Give every array its place.

    Parameters
    ----------
    items : sequence of SectionPlan or BlendPlan
        In the order of the file.

    Returns
    -------
    Layout
        Equal for equal items.
    """
    count = sum(len(item.arrays) for item in items)
    data_begin = align(METADATA_BASE + METADATA_PER_ARRAY * count, STRIPE)
    placed: list[tuple[ArrayPlace, ...]] = []
    units: list[Unit] = []
    pending: list[int] = []
    begin = offset = data_begin
    for index, item in enumerate(items):
        alone = isinstance(item, BlendPlan) or _size(item) >= SPLITTABLE_FROM
        if pending and (alone or offset - begin >= UNIT_FULL):
            units.append(Unit(tuple(pending), begin, offset, splittable=False))
            pending = []
        if alone or not pending:
            begin = offset = align(offset, STRIPE)
        arrays, offset = _place(item, offset, STRIPE if alone else PAGE)
        placed.append(arrays)
        if alone:
            units.append(Unit((index,), begin, offset, isinstance(item, SectionPlan)))
        else:
            pending.append(index)
    if pending:
        units.append(Unit(tuple(pending), begin, offset, splittable=False))
    return Layout(data_begin, tuple(placed), tuple(units), align(offset, STRIPE))


def _size(item: SectionPlan | BlendPlan) -> int:
    return sum(nbytes_of(dtype, shape) for dtype, shape in item.arrays.values())


def nbytes_of(dtype: str, shape: Iterable[int]) -> int:
    """Return the bytes of an array."""
    return np.dtype(dtype).itemsize * math.prod(shape)


def _place(
    item: SectionPlan | BlendPlan, offset: int, alignment: int
) -> tuple[tuple[ArrayPlace, ...], int]:
    places = []
    for name, (dtype, shape) in item.arrays.items():
        offset = align(offset, alignment)
        places.append(ArrayPlace(name, dtype, shape, offset, nbytes_of(dtype, shape)))
        offset = places[-1].offset + places[-1].nbytes
    return tuple(places), offset
