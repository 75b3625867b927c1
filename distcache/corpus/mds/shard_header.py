"""The header of a raw shard: the places of its samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from distcache.corpus.mds.index_json import Columns, ShardEntry
from distcache.storage.threads import decodable

MOST_COLUMNS: Final = 1 << 20  # bytes of the JSON of a header that are read


@decodable
class _Header(Columns, frozen=True):
    """What is read of the JSON in a header; it has more."""


def offsets_size(samples: int) -> int:
    """Return the bytes before the JSON of a header: the number of samples, and their offsets."""
    return 4 * (samples + 2)


def offsets_of(front: NDArray[np.uint8], samples: int) -> NDArray[np.int64]:
    """Return the offsets of samples, and the end of the last; the front holds them all."""
    end = offsets_size(samples)
    offsets: NDArray[np.int64] = front[4:end].view("<u4").astype(np.int64)
    return offsets


def header_problem(front: NDArray[np.uint8], entry: ShardEntry) -> str:
    """Return what is wrong with the header of a raw shard, or nothing.

    Parameters
    ----------
    front : ndarray of uint8
        The shard's first bytes, as far as its first sample, or as many as there are.
    entry : ShardEntry
        Entry of the shard in `index.json`.
    """
    samples, json_begin = entry.samples, offsets_size(entry.samples)
    if len(front) < 4:
        return f"has {len(front)} bytes, too few for a header"
    found = int(front[:4].view("<u4")[0])
    if found != samples:
        return f"its header says {found} samples, the index {samples}"
    if len(front) < json_begin:
        return f"ends at byte {len(front)}, within the offsets of {samples} samples"
    offsets = offsets_of(front, samples)
    if problem := _offset_problem(offsets, json_begin, entry.raw_data.bytes):
        return problem
    if len(front) < offsets[0]:
        return f"ends at byte {len(front)}, within the description of its columns"
    return _column_problem(bytes(front[json_begin : int(offsets[0])]), entry)


def _offset_problem(offsets: NDArray[np.int64], json_begin: int, size: int) -> str:
    falls = np.flatnonzero(np.diff(offsets) < 0)
    if len(falls):
        return f"its offsets decrease after sample {falls[0]}"
    if offsets[-1] != size:
        return f"its samples end at byte {offsets[-1]}, the index says {size}"
    if offsets[0] < json_begin or offsets[0] - json_begin > MOST_COLUMNS:
        return (
            f"its first sample begins at byte {offsets[0]}, expected {json_begin} and the columns"
        )
    return ""


def _column_problem(text: bytes, entry: ShardEntry) -> str:
    try:
        found = msgspec.json.decode(text, type=_Header)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return f"the description of its columns is damaged: {error}"
    pairs: Sequence[tuple[object, object, str]] = (
        (found.column_names, entry.column_names, "names"),
        (found.column_encodings, entry.column_encodings, "encodings"),
        (found.column_sizes, entry.column_sizes, "sizes"),
    )
    for here, there, what in pairs:
        if here != there:
            return f"the {what} of its columns are {here}, in the index {there}"
    return ""
