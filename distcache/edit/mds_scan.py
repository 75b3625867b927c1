"""Scan one MDS shard: the places of its samples, or of the tokens of one of their columns."""

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
from distcache.corpus.mds.shard_header import header_problem, offsets_of, offsets_size
from distcache.corpus.mds.stored_shard import StoredShard, read_front, read_shard
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
HeadersOnly = Annotated[bool, Option("Read only headers: no digests, no token compared.")]


@decodable
class MdsOptions(msgspec.Struct, frozen=True):
    """What is indexed of MDS data sets.

    Attributes
    ----------
    column : str
        Column of tokens; empty for whole samples, as rows.
    """

    column: str = "tokens"
    split: Annotated[str, Option("A subdirectory of each, such as train.", metavar="NAME")] = ""
    dtype: TokenDtype = None
    vocabulary: Annotated[
        int | None, Option("Token ids must be below it.", "--vocab-size", least=1)
    ] = None
    headers_only: Annotated[bool, Option("Read only headers: no digests, no token compared.")] = (
        False
    )
    on_error: Annotated[
        Literal["fail", "skip"],
        Option("End at the first damaged shard or sample, or leave them out."),
    ] = "fail"

    @property
    def rows(self) -> bool:
        """Whether whole samples are indexed."""
        return not self.column


class Scan(NamedTuple):
    """What is known of a shard."""

    lengths: NDArray[np.int32]  # tokens of each sample that is kept; bytes, if samples are rows
    pointers: NDArray[np.uint32]  # bytes of the raw shard where each begins
    data_begin: int  # start of the samples, in bytes
    # XXH3-128 of both forms; zeros where it is not known
    raw_digest: bytes
    zip_digest: bytes
    dtype: str  # name of the type of the tokens
    wrong: dict[int, str]  # samples that are left out, and why


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
            "bytes; whole samples are indexed with --rows"
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
        If the shard is damaged; damaged samples are returned.
    """
    if options.headers_only:
        return _scan_header(stored, entry, options)
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
    for sample in np.flatnonzero(lengths > np.iinfo(np.int32).max).tolist():
        wrong[sample] = f"{lengths[sample]} are more than {np.iinfo(np.int32).max}"
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


def _scan_header(stored: StoredShard, entry: ShardEntry, options: MdsOptions) -> Scan:
    """Scan a shard by its header alone."""
    size = offsets_size(entry.samples)
    front = read_front(stored, min(size + COLUMNS, stored.raw_size))
    if len(front) >= size:
        begin = int(front[4:8].view("<u4")[0])
        if len(front) < begin <= stored.raw_size:
            front = read_front(stored, begin)
    if problem := header_problem(front, entry):
        raise CorpusError(f"{stored.path}: {problem}")
    offsets = offsets_of(front, entry.samples)
    digests = (bytes(16), bytes(16))
    if options.rows:
        return _rows(offsets, digests)
    places, dtype = _places_by_size(entry, offsets, options)
    return _scanned(places, offsets, digests, dtype)


def _places_by_size(
    entry: ShardEntry, offsets: NDArray[np.int64], options: MdsOptions
) -> tuple[Places, np.dtype[Any]]:
    """Return the places of tokens, as far as it follows from the sizes of samples."""
    kind = kind_of(entry, options)
    own = entry.columns.place_of(options.column)
    sizes = entry.column_sizes
    dtype = np.dtype(options.dtype) if options.dtype else kind.dtype
    others = [size for place, size in enumerate(sizes) if place != own]
    if dtype is None or None in others or (kind.has_head and kind.dtype is None):
        raise ConfigError(
            "--headers-only: where the tokens lie does not follow from the sizes of samples, since "
            "another column varies or each sample names the type; leave it out"
        )
    varying = 4 * (sizes[own] is None)
    fixed = sum(size or 0 for place, size in enumerate(sizes) if place != own)
    before = sum(size or 0 for size in sizes[:own])
    begins = offsets[:-1] + varying + before
    values = np.diff(offsets) - varying - fixed
    heads = _heads(values, dtype.itemsize) if kind.has_head else np.zeros(len(values), np.int64)
    values = values - heads
    bad = (values < 0) | (values % dtype.itemsize != 0) | (heads < 0)
    if kind.length is not None:
        bad |= values != kind.length * dtype.itemsize
    wrong = {int(sample): "its size fits no tokens" for sample in np.flatnonzero(bad)}
    return Places(np.where(bad, 0, begins + heads), np.where(bad, 0, values), wrong), dtype


def _heads(sizes: NDArray[np.int64], item: int) -> NDArray[np.int64]:
    """Return the bytes of the shape before the values of arrays of some sizes; -1 if none fits."""
    heads = np.full(len(sizes), -1, np.int64)
    for power in (3, 2, 1, 0):
        width = 1 << power
        count, rest = np.divmod(sizes - 1 - width, item)
        least = 0 if power == 0 else 1 << (4 << power)
        fits = (rest == 0) & (count >= least) & (count < 1 << min(8 << power, 62))
        heads[fits] = 1 + width
    return heads


def _out_of_range(
    raw: NDArray[np.uint8], places: Places, dtype: np.dtype[Any], vocabulary: int | None
) -> dict[int, str]:
    """Return the samples with tokens that are no ids, or beyond the vocabulary."""
    if vocabulary is None and dtype.name not in COMPARED:
        return {}
    limit = limit_of(token_type(dtype.name), vocabulary)
    wrong: dict[int, str] = {}
    values = _gather(raw, places).view(dtype)
    ends = np.cumsum(places.sizes // dtype.itemsize)
    begin = 0
    while (found := first_outside(values[begin:], limit)) >= 0:
        sample = int(np.searchsorted(ends, begin + found, "right"))
        wrong[sample] = f"token {values[begin + found]} is not below {limit}"
        begin = int(ends[sample])
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
            return values.copy().reshape(-1)  # aligned, which one sample alone need not be
    parts = [
        raw[begin : begin + size]
        for begin, size in zip(begins.tolist(), sizes.tolist(), strict=True)
    ]
    return np.concatenate([np.empty(0, np.uint8), *parts])


def fitting_type(raw: NDArray[np.uint8], places: Places) -> str:
    """Return the type of tokens that bytes look like; empty if none fits."""
    values = _gather(raw, places)
    for name, item in (("int64", 8), ("int32", 4), ("uint16", 2)):
        if (places.sizes % item).any() or not len(values):
            continue
        found = values.view(name)
        if item == 2 or (found.min() >= 0 and found.max() < 1 << 24):
            return name
    return ""
