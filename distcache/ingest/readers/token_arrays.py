"""Token ids in arrays: `.npy` files of NumPy, or bytes without a header.

The latter are dolma's `.npy` and datatrove's `.ds`. Documents end where an index beside the array
says (`NAME.index`, the ends of documents in tokens as 64-bit integers: datatrove,
pipeline/tokens/tokenizer.py), else at each end token.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from distcache.ingest.inputs import Input, TokenOptions
from distcache.ingest.pieces import InputPiece
from distcache.ingest.readers.input_rows import InputRow, TokenRows
from distcache.storage.files import closing_fd, open_regular, read_range

BATCH_BYTES: Final = 4 << 20
MAGIC: Final = b"\x93NUMPY"
TYPES: Final = ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8")


def array_rows(
    entry: Input, _piece: InputPiece, options: TokenOptions
) -> Iterator[TokenRows | InputRow]:
    """Yield the documents of an array of ids."""
    first = 0
    try:
        with closing_fd(open_regular(entry.path)) as descriptor:
            dtype, begin = _layout(descriptor, entry, options)
            count, rest = divmod(entry.size - begin, dtype.itemsize)
            if rest:
                raise ValueError(f"has {rest} bytes after its last whole token of {dtype}")
            ends = _stated_ends(entry, count)
            if ends is None and options.eod is None:
                raise ValueError(
                    f"has no boundaries: give --eod, the token that ends each document, or put "
                    f"{entry.path}.index beside it"
                )
            for lists in _documents(descriptor, dtype, begin, count, ends, options.eod):
                places = np.arange(first, first + len(lists), dtype=np.int64)
                yield TokenRows(pa.RecordBatch.from_arrays([lists], [options.column]), places)
                first += len(lists)
    except (ValueError, OSError, EOFError) as error:
        yield InputRow(first, None, str(error))


def _layout(descriptor: int, entry: Input, options: TokenOptions) -> tuple[np.dtype[Any], int]:
    """Return the type of an array's tokens, and where they begin."""
    if os.pread(descriptor, len(MAGIC), 0) != MAGIC:
        if options.dtype is None:
            raise ValueError("is an array without a header: give its type with --dtype, as uint16")
        return np.dtype(options.dtype).newbyteorder("<"), 0
    with open(descriptor, "rb", closefd=False) as stream:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0
        shape, _, dtype = (read if version == (1, 0) else np.lib.format.read_array_header_2_0)(
            stream
        )
        begin = stream.tell()
    if dtype.str[1:] not in TYPES or len(shape) != 1 or dtype.str[0] == ">":
        raise ValueError(f"is an array of {dtype} and shape {shape}, expected one row of integers")
    if shape[0] * dtype.itemsize != entry.size - begin:
        raise ValueError(f"has {entry.size - begin} bytes of tokens, but {shape[0]} in its header")
    return dtype, begin


def _stated_ends(entry: Input, count: int) -> NDArray[np.int64] | None:
    """Return the ends of documents, in tokens, of the index beside an array, if there is one."""
    path = entry.path + ".index"
    if not os.path.lexists(path):
        return None
    with closing_fd(open_regular(path)) as descriptor:
        size = os.fstat(descriptor).st_size
        ends = np.frombuffer(read_range(descriptor, 0, size - size % 8), "<u8")
    whole = size % 8 == 0 and (not len(ends) or int(ends.max()) == int(ends[-1]) == count)
    ordered = np.array(ends, np.int64) if whole else np.zeros(0, np.int64)
    if not whole or bool((np.diff(ordered) < 0).any()):
        raise ValueError(f"{path} does not list ascending ends of documents, up to {count} tokens")
    return ordered


def _documents(
    descriptor: int,
    dtype: np.dtype[Any],
    begin: int,
    count: int,
    ends: NDArray[np.int64] | None,
    eod: int | None,
) -> Iterator[pa.Array]:
    """Yield the documents of an array in batches; the last one may have no end."""
    step = BATCH_BYTES // dtype.itemsize
    carried: list[NDArray[Any]] = []
    for low in range(0, count, step):
        high = min(low + step, count)
        content = read_range(
            descriptor, begin + low * dtype.itemsize, begin + high * dtype.itemsize
        )
        tokens = np.frombuffer(content, dtype)
        if ends is None:
            own = np.flatnonzero(tokens == eod) + 1
        else:
            own = (
                ends[np.searchsorted(ends, low, "right") : np.searchsorted(ends, high, "right")]
                - low
            )
        if high == count and (not len(own) or own[-1] < len(tokens)):
            own = np.append(own, len(tokens))
        if not len(own):
            carried.append(tokens)
            continue
        before = sum(map(len, carried))
        whole = np.concatenate([*carried, tokens[: own[-1]]])
        carried = [tokens[own[-1] :]]
        offsets = np.concatenate([[0], own + before]).astype(np.int64)
        yield pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(whole))
