"""Scan one MDS shard: the places of its records, or of the tokens of one of their columns."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from distcache.corpus.idx import limit_of
from distcache.corpus.mds.columns import (
    Places,
    TokenColumn,
    column_places,
    column_type,
    token_places,
)
from distcache.corpus.mds.index_json import ShardEntry
from distcache.corpus.mds.stored_shard import StoredShard, header_problem, offsets_of, read_shard
from distcache.errors import ConfigError, CorpusError
from distcache.kernels import first_outside
from distcache.option import Option
from distcache.storage.threads import decodable

COLUMNS: Final = 1 << 16  # bytes of a header after its offsets that are read at first
COMPARED: Final = ("uint32", "uint64")  # an `.idx` has no such types
# What tokens may be, and what the `.idx` has them as.
DTYPES: Final = {
    "uint8": "u1",
    "int8": "i1",
    "uint16": "<u2",
    "int16": "<i2",
    "int32": "<i4",
    "uint32": "<i4",
    "int64": "<i8",
    "uint64": "<i8",
}


TokenDtype = Annotated[
    str | None, Option("Type of the tokens in a column of bytes, such as int64.", metavar="TYPE")
]


@decodable
class MdsOptions(msgspec.Struct, frozen=True):
    """What is indexed of MDS data sets.

    Attributes
    ----------
    column : str
        Column of tokens; empty for whole records, as rows.
    """

    column: str = "tokens"
    split: Annotated[
        str, Option("A subdirectory of each, such as train.", "--subdirectory", metavar="NAME")
    ] = ""
    dtype: TokenDtype = None
    vocabulary: Annotated[
        int | None, Option("Token ids must be below it.", "--vocab-size", least=1)
    ] = None
    on_error: Annotated[
        Literal["fail", "skip"],
        Option("End at the first damaged shard or record, or leave them out."),
    ] = "fail"

    @property
    def rows(self) -> bool:
        """Whether whole records are indexed."""
        return not self.column


class Scan(NamedTuple):
    """What is known of a shard."""

    lengths: NDArray[np.int32]  # tokens of each record that is kept; bytes, if records are rows
    pointers: NDArray[np.uint32]  # bytes of the raw shard where each begins
    data_begin: int  # start of the records, in bytes
    # XXH3-128 of both forms; zeros of the one that does not exist
    raw_digest: bytes
    zip_digest: bytes
    dtype: str  # name of the type of the tokens
    wrong: dict[int, str]  # records that are left out, and why


def kind_of(entry: ShardEntry, options: MdsOptions) -> TokenColumn:
    """Return how the column of a shard holds tokens.

    Raises
    ------
    ConfigError
        If there is no such column, it holds no tokens, or their type is another one.
    """
    if options.column not in entry.column_names:
        raise ConfigError(
            f"--column {options.column}: the columns are {', '.join(entry.column_names)}"
        )
    encoding = entry.column_encodings[entry.columns.place_of(options.column)]
    kind = column_type(encoding)
    if kind is None:
        raise ConfigError(
            f"--column {options.column}: is {encoding}, expected an ndarray of one dimension, or "
            "bytes; whole records are indexed with --rows"
        )
    if kind.dtype is not None and options.dtype not in (None, kind.dtype.name):
        raise ConfigError(f"--dtype {options.dtype}: the column is {encoding}")
    if kind.dtype is not None and kind.dtype.name not in DTYPES:
        raise ConfigError(f"--column {options.column}: is {encoding}, expected integers")
    return kind


def token_type(name: str) -> np.dtype[Any]:
    """Return the type that the `.idx` gives to tokens of a type in shards."""
    return np.dtype(DTYPES[name])


def scan_shard(
    stored: StoredShard, entry: ShardEntry, options: MdsOptions, room: NDArray[np.uint8]
) -> Scan:
    """Scan a shard.

    Parameters
    ----------
    stored : StoredShard
        The form that exists.
    entry : ShardEntry
        Entry of the shard in the index.
    options : MdsOptions
        Columns and split to index, and how.
    room : ndarray of uint8
        Memory of at least the size of the raw shard.

    Raises
    ------
    CorpusError
        If the shard is damaged; damaged records are returned.
    """
    raw = room[: stored.raw_size]
    digests = read_shard(stored, entry, raw)
    if problem := header_problem(raw, entry):
        raise CorpusError(f"{stored.path}: {problem}")
    offsets = offsets_of(raw, entry.samples)
    if options.rows:
        return _rows(offsets, digests)
    kind = kind_of(entry, options)
    columns = entry.columns
    places = column_places(raw, offsets, columns, columns.place_of(options.column))
    stated = np.dtype(options.dtype) if options.dtype else kind.dtype
    places, dtype = token_places(raw, places, kind, stated)
    if dtype is None:
        dtype = np.dtype("<i4")  # of no token
    if dtype.kind == "f":
        raise CorpusError(f"{stored.path}: its tokens are {dtype}, expected integers")
    wrong = places.wrong | _out_of_range(raw, places, dtype, options.vocabulary)
    return _scanned(places._replace(wrong=wrong), offsets, digests, dtype)


def _rows(offsets: NDArray[np.int64], digests: tuple[bytes, bytes]) -> Scan:
    places = Places(offsets[:-1], np.diff(offsets), {})
    return _scanned(places, offsets, digests, np.dtype("u1"))


def _scanned(
    places: Places, offsets: NDArray[np.int64], digests: tuple[bytes, bytes], dtype: np.dtype[Any]
) -> Scan:
    lengths = places.sizes // dtype.itemsize
    wrong = dict(places.wrong)
    for record in np.flatnonzero(lengths > np.iinfo(np.int32).max).tolist():
        wrong[record] = f"{lengths[record]} are more than {np.iinfo(np.int32).max}"
    keep = np.ones(len(lengths), bool)
    keep[np.array(sorted(wrong), np.int64)] = False
    return Scan(
        lengths[keep].astype(np.int32),
        places.begins[keep].astype(np.uint32),
        int(offsets[0]),
        *digests,
        dtype.name,
        wrong,
    )


def _out_of_range(
    raw: NDArray[np.uint8], places: Places, dtype: np.dtype[Any], vocabulary: int | None
) -> dict[int, str]:
    """Return the records with tokens that are no ids, or beyond the vocabulary."""
    if vocabulary is None and dtype.name not in COMPARED:
        return {}
    limit = limit_of(token_type(dtype.name), vocabulary)
    wrong: dict[int, str] = {}
    values = _gather(raw, places).view(dtype)
    ends = np.cumsum(places.sizes // dtype.itemsize)
    begin = 0
    while (found := first_outside(values[begin:], limit)) >= 0:
        record = int(np.searchsorted(ends, begin + found, "right"))
        wrong[record] = f"token {values[begin + found]} is not below {limit}"
        begin = int(ends[record])
    return wrong


def _gather(raw: NDArray[np.uint8], places: Places) -> NDArray[np.uint8]:
    """Return the bytes of all values, one after the other."""
    begins, sizes = places.begins, places.sizes
    if not len(sizes):
        return np.empty(0, np.uint8)
    steps = np.unique(np.diff(begins))
    if len(steps) <= 1 and (sizes == sizes[0]).all() and sizes[0] > 0:
        step = int(steps[0]) if len(steps) else int(sizes[0])
        if step >= sizes[0]:
            first = raw[int(begins[0]) :]
            shape = (len(begins), int(sizes[0]))
            values = np.lib.stride_tricks.as_strided(first, shape, (step, 1), writeable=False)
            return values.copy().reshape(-1)  # aligned, which one record alone need not be
    parts = [
        raw[begin : begin + size]
        for begin, size in zip(begins.tolist(), sizes.tolist(), strict=True)
    ]
    return np.concatenate([np.empty(0, np.uint8), *parts])
