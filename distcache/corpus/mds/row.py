"""A record of several columns, whose values are decoded when they are asked for."""

from __future__ import annotations

import decimal
import itertools
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from distcache.corpus.mds.columns import DTYPES, shape_of
from distcache.corpus.mds.index_json import Columns
from distcache.errors import ConfigError, CorpusError, DistcacheError

SCALARS: Final = {
    "int": "<i8",
    **{np.dtype(code).name: code for code in DTYPES.values()},
}
TEXTS: Final[dict[str, Callable[[str], Any]]] = {
    "str": str,
    "str_int": int,
    "str_float": float,
    "str_decimal": decimal.Decimal,
    "json": json.loads,
}


class Row(Mapping[str, Any]):
    """A record: a mapping from the names of columns to their values.

    ``bytes`` and images are bytes, texts are ``str``, integers and floats are Python's, ndarrays
    are NumPy's, and JSON is decoded. A pickle is never.

    Parameters
    ----------
    columns : Columns
        Columns of the data set.
    data : bytes
        The record.
    place : str
        Place of the record, for messages.
    """

    __slots__ = ("_columns", "_data", "_place", "_spans")

    def __init__(self, columns: Columns, data: bytes, place: str) -> None:
        self._columns = columns
        self._data = data
        self._place = place
        self._spans: dict[str, tuple[int, int]] | None = None

    def __len__(self) -> int:
        return len(self._columns.column_names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns.column_names)

    def __repr__(self) -> str:
        return f"<row of {', '.join(self)}: {self._place}>"

    def __getitem__(self, name: str) -> Any:
        """Return the value of a column.

        Raises
        ------
        KeyError
            If there is no such column.
        CorpusError
            If the bytes are not what the column's encoding says.
        ConfigError
            If it is a pickle.
        """
        spans = self._find()
        begin, end = spans[name]
        encoding = self._columns.column_encodings[self._columns.place_of(name)]
        try:
            return decode_value(encoding, self._data[begin:end])
        except DistcacheError:
            raise
        except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
            raise CorpusError(f"{self._place}: column {name} is no {encoding}: {error}") from error

    def __reduce__(self) -> tuple[Any, ...]:
        return Row, (self._columns, self._data, self._place)

    def _find(self) -> dict[str, tuple[int, int]]:
        """Return the place of the value of each column."""
        if self._spans is None:
            known, data = self._columns.column_sizes, self._data
            varying = known.count(None)
            if len(data) < 4 * varying:
                raise CorpusError(f"{self._place}: ends within the sizes of its columns")
            sizes = iter(struct.unpack_from(f"<{varying}I", data))
            all_sizes = (next(sizes) if size is None else size for size in known)
            ends = list(itertools.accumulate(all_sizes, initial=4 * varying))
            if ends[-1] != len(data):
                raise CorpusError(
                    f"{self._place}: its columns take {ends[-1]} bytes of {len(data)}"
                )
            pairs = itertools.pairwise(ends)
            self._spans = dict(zip(self._columns.column_names, pairs, strict=True))
        return self._spans


def decode_value(encoding: str, data: bytes) -> Any:
    """Return the value of a column from its bytes.

    Raises
    ------
    ValueError
        If the bytes are not what the encoding says.
    ConfigError
        If it is a pickle.
    """
    kind = encoding.partition(":")[0]
    if kind == "pkl":
        raise ConfigError("a column is a pickle, which is never decoded: it could run any program")
    if encoding in TEXTS:
        return TEXTS[encoding](data.decode("utf-8"))
    if encoding in SCALARS:
        dtype = np.dtype(SCALARS[encoding])
        if len(data) != dtype.itemsize:
            raise ValueError(f"has {len(data)} bytes, expected {dtype.itemsize}")
        return np.frombuffer(data, dtype)[0].item()
    if kind == "ndarray":
        return _decode_array(encoding, data)
    return data


def _decode_array(encoding: str, data: bytes) -> Any:
    """Return an array, whose type and shape may precede its values."""
    words = encoding.split(":")
    if len(words) > 1:
        dtype = np.dtype(SCALARS[words[1]])
    else:
        dtype, data = np.dtype(DTYPES[_first(data)]), data[1:]
    shape = shape_of(encoding)
    if shape is None:
        head = _first(data)
        width, dimensions = 1 << (head & 3), head >> 2
        end = 1 + width * dimensions
        if len(data) < end:
            raise ValueError(f"has {len(data)} bytes, too few for its shape")
        shape = tuple(np.frombuffer(data[1:end], f"<u{width}").tolist())
        data = data[end:]
    return np.frombuffer(data, dtype).reshape(shape)


def _first(data: bytes) -> int:
    if not data:
        raise ValueError("is empty")
    return data[0]
