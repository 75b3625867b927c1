"""The columns of records: the places of their values in a raw shard.

A record is a u32 size for each column that varies, in their order, then the columns, one after the
other (``streaming/base/format/mds/reader.py``).
"""

from __future__ import annotations

import math
import re
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distcache.corpus.mds.index_json import Columns

# Of the byte that an ndarray without a type in its encoding begins with.
DTYPES: Final = {
    8: "u1", 9: "i1", 16: "<u2", 17: "<i2", 18: "<f2", 32: "<u4", 33: "<i4", 34: "<f4",
    64: "<u8", 65: "<i8", 66: "<f8",
}  # fmt: skip
_NAMES: Final = {np.dtype(code).name: np.dtype(code) for code in DTYPES.values()}
MAX_SEQUENCE_TOKENS: Final = (1 << 31) - 1  # tokens of a sequence
LENGTH: Final = re.compile("[0-9]{1,10}")


class Places(NamedTuple):
    """Places of values."""

    # bytes of the raw shard
    begins: NDArray[np.int64]
    sizes: NDArray[np.int64]
    # records whose places are not known, and why; their begins and sizes are 0
    wrong: dict[int, str]


def column_places(
    raw: NDArray[np.uint8], offsets: NDArray[np.int64], columns: Columns, column: int
) -> Places:
    """Return the places of the values of a column.

    Parameters
    ----------
    raw : ndarray of uint8
        The raw shard.
    offsets : ndarray of int64, shape (records + 1,)
        Offsets of records; they do not decrease, and end with the shard.
    columns : Columns
        Columns of the shard.
    column : int
        Number of the column.
    """
    begins, lengths = offsets[:-1], np.diff(offsets)
    varying = [place for place, size in enumerate(columns.column_sizes) if size is None]
    fixed = sum(size for size in columns.column_sizes if size is not None)
    least = 4 * len(varying) + fixed
    wrong = lengths < least
    safe = np.where(wrong, 0, begins)
    total = np.full(len(begins), least, np.int64)
    skipped = np.full(len(begins), 4 * len(varying), np.int64)
    own = np.zeros(len(begins), np.int64)
    for place, size in enumerate(columns.column_sizes):
        if size is None:
            sizes = _u32_at(raw, safe + 4 * varying.index(place), wrong)
            total += sizes
        else:
            sizes = np.full(len(begins), size, np.int64)
        if place < column:
            skipped += sizes
        elif place == column:
            own = sizes
    wrong |= total != lengths
    reasons = {
        int(record): f"its columns take {total[record]} bytes of {lengths[record]}"
        for record in np.flatnonzero(wrong)
    }
    return Places(np.where(wrong, 0, begins + skipped), np.where(wrong, 0, own), reasons)


def _u32_at(
    raw: NDArray[np.uint8], places: NDArray[np.int64], wrong: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the u32 at places of a shard, 0 for records that are known to be wrong."""
    if wrong.all():
        return np.zeros(len(places), np.int64)
    places = np.where(wrong, 0, places)
    found = np.zeros(len(places), np.int64)
    for byte in range(4):
        found |= raw[places + byte].astype(np.int64) << (8 * byte)
    return np.where(wrong, 0, found)


class TokenColumn(NamedTuple):
    """How a column holds tokens."""

    dtype: np.dtype[Any] | None  # type of the tokens; None if each record says it
    length: int | None  # tokens of every record; None if it varies
    has_head: bool  # whether each value begins with its shape, as an ndarray whose shape varies


def column_type(encoding: str) -> TokenColumn | None:
    """Return how an encoding holds tokens; None if it does not.

    That of ``bytes`` is not known: its dtype has to be said.
    """
    if encoding == "bytes":
        return TokenColumn(None, None, has_head=False)
    kind, *words = encoding.split(":")
    if kind != "ndarray" or len(words) > 2:
        return None
    dtype = _NAMES.get(words[0]) if words else None
    if words and dtype is None:
        return None
    if len(words) < 2:
        return TokenColumn(dtype, None, has_head=True)
    shape = words[1].split(",")
    if len(shape) != 1 or not LENGTH.fullmatch(shape[0]):
        return None  # of several dimensions, or none that can be
    return TokenColumn(dtype, int(shape[0]), has_head=False)


def token_places(
    raw: NDArray[np.uint8], places: Places, kind: TokenColumn, dtype: np.dtype[Any] | None
) -> tuple[Places, np.dtype[Any] | None]:
    """Return the places of the tokens of a column, after the heads of its arrays.

    Parameters
    ----------
    raw : ndarray of uint8
        The raw shard.
    places : Places
        Places of the column.
    kind : TokenColumn
        Encoding of the column.
    dtype : dtype or None
        Type of the tokens, if it is known.

    Returns
    -------
    places : Places
        Places of the tokens alone.
    dtype : dtype or None
        Type of the tokens, given or from the first record that says it; other records are
        wrong.
    """
    begins, sizes, wrong = places.begins.copy(), places.sizes.copy(), dict(places.wrong)
    if kind.has_head and kind.dtype is None:
        dtype = _skip_dtypes(raw, begins, sizes, wrong, dtype)
    if kind.has_head:
        _skip_shapes(raw, begins, sizes, wrong, dtype)
    item = dtype.itemsize if dtype is not None else 1
    _note(wrong, np.flatnonzero(sizes % item), lambda i: f"{sizes[i]} bytes are no {dtype}")
    if kind.length is not None:
        different = np.flatnonzero(sizes != kind.length * item)
        _note(wrong, different, lambda i: f"{sizes[i]} bytes are not {kind.length} tokens")
    long = np.flatnonzero(sizes // item > MAX_SEQUENCE_TOKENS)
    _note(wrong, long, lambda i: f"{sizes[i] // item} tokens are more than {MAX_SEQUENCE_TOKENS}")
    bad = np.array(sorted(wrong), np.int64)
    begins[bad] = sizes[bad] = 0
    return Places(begins, sizes, wrong), dtype


def _note(wrong: dict[int, str], records: NDArray[np.int64], reason: Any) -> None:
    for record in records.tolist():
        wrong.setdefault(record, reason(record))


def _skip_dtypes(
    raw: NDArray[np.uint8],
    begins: NDArray[np.int64],
    sizes: NDArray[np.int64],
    wrong: dict[int, str],
    dtype: np.dtype[Any] | None,
) -> np.dtype[Any] | None:
    """Go past the byte that says the type of an array."""
    known = np.flatnonzero(sizes)
    codes = raw[begins[known]]
    if dtype is None and len(codes):
        dtype = np.dtype(DTYPES[int(codes[0])]) if int(codes[0]) in DTYPES else None
    expected = next(
        (code for code, name in DTYPES.items() if dtype is not None and np.dtype(name) == dtype), -1
    )
    other = known[codes != expected]
    _note(
        wrong,
        other,
        lambda i: f"its type is {DTYPES.get(int(raw[begins[i]]), 'unknown')}, expected {dtype}",
    )
    empty = np.setdiff1d(np.flatnonzero(sizes == 0), np.array(sorted(wrong), np.int64))
    _note(wrong, empty, lambda _: "it has no array")
    begins[known] += 1
    sizes[known] -= 1
    return dtype


def _skip_shapes(
    raw: NDArray[np.uint8],
    begins: NDArray[np.int64],
    sizes: NDArray[np.int64],
    wrong: dict[int, str],
    dtype: np.dtype[Any] | None,
) -> None:
    """Go past the shape of an array, and compare it with the bytes after it."""
    item = dtype.itemsize if dtype is not None else 1
    empty = np.setdiff1d(np.flatnonzero(sizes == 0), np.array(sorted(wrong), np.int64))
    _note(wrong, empty, lambda _: "it has no array")
    known = np.flatnonzero(sizes)
    heads = raw[begins[known]]
    flat = heads >> 2 == 1
    _note(wrong, known[~flat], lambda i: f"it has {raw[begins[i]] >> 2} dimensions, expected 1")
    widths = 1 << (heads & 3).astype(np.int64)
    short = flat & (sizes[known] < 1 + widths)
    _note(wrong, known[short], lambda i: f"{sizes[i]} bytes are too few for a shape")
    some = known[flat & ~short]
    widths = widths[flat & ~short]
    counts = np.zeros(len(some), np.int64)
    for byte in range(7):  # of more than 2**56 nothing can exist
        has = widths > byte
        counts[has] |= raw[begins[some[has]] + 1 + byte].astype(np.int64) << (8 * byte)
    begins[some] += 1 + widths
    sizes[some] -= 1 + widths
    other = counts != sizes[some] // item
    other |= sizes[some] % item != 0
    shape = dict(zip(some.tolist(), counts.tolist(), strict=True))
    _note(wrong, some[other], lambda i: f"{shape[i]} tokens are not {sizes[i]} bytes")


def shape_of(encoding: str) -> tuple[int, ...] | None:
    """Return the shape that the encoding of an ndarray names."""
    words = encoding.split(":")
    if len(words) < 3:
        return None
    shape = tuple(map(int, words[2].split(",")))
    return shape if math.prod(shape) else None
