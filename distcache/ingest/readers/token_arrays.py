"""Token ids in arrays: `.npy` files of NumPy, shards of the nanoGPT family, or bytes alone.

Bytes alone are dolma's `.npy` and datatrove's `.ds`; what begins as a file of another format does
is refused. Shards have a header of 256 integers of 32 bits: a number that says which they are, a
version, and how many tokens follow (llm.c, dev/data/data_common.py; modded-nanogpt; NeMo Automodel,
tools/nanogpt_data_processor.py, where the fourth says how many bytes a token has).

Documents end where an index beside the array says (`NAME.index`, the ends of documents in tokens as
64-bit integers: datatrove, pipeline/tokens/tokenizer.py, which writes a mask of the loss to
`NAME.loss`), else at each end token.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from distcache.corpus.idx import idx_path
from distcache.ingest.inputs import Input, TokenOptions
from distcache.ingest.pieces import InputPiece
from distcache.ingest.readers.formats import ENDS, paths_beside
from distcache.ingest.readers.input_rows import InputRow, TokenRows
from distcache.ingest.readers.token_masks import IGNORE
from distcache.storage.files import closing_fd, open_regular, read_range
from distcache.storage.signatures import HEAD_BYTES, TAIL_BYTES, other_format

BATCH_BYTES: Final = 4 << 20
OF_LOSS: Final = "loss_mask"  # column of `distcache.ingest.readers.token_masks`
MAGIC: Final = b"\x93NUMPY"
HEADER_BYTES: Final = 1024  # of a shard of the nanoGPT family
# Bytes of a token by the first number of the header; 0 where the fourth number says it.
HEADERS: Final = {20240520: 2, 20240801: 4, 278895051: 0}
# Of llm.c too, but without tokens in a row: questions with answers, models, states of training.
OTHER_HEADERS: Final = (20240522, 20240326, 20240327)
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
            mask = _mask_beside(entry.path) if options.masks == "keep" else ""
            ends = _stated_ends(entry, count)
            if ends is None and options.eod is None:
                raise ValueError(
                    f"has no boundaries: give --eod, the token that ends each document, or put "
                    f"{entry.path}.index beside it"
                )
            with _open_mask(mask, count) as losses:
                array = _Array(descriptor, dtype, begin, count, losses)
                for columns in _documents(array, ends, options.eod):
                    size = len(columns[0])
                    places = np.arange(first, first + size, dtype=np.int64)
                    names = [options.column, OF_LOSS][: len(columns)]
                    yield TokenRows(pa.RecordBatch.from_arrays(columns, names), places)
                    first += size
    except (ValueError, OSError, EOFError) as error:
        yield InputRow(first, None, str(error))


def _layout(descriptor: int, entry: Input, options: TokenOptions) -> tuple[np.dtype[Any], int]:
    """Return the type of an array's tokens, and where they begin."""
    head = os.pread(descriptor, HEAD_BYTES, 0)
    if not head.startswith(MAGIC):
        tail = os.pread(descriptor, TAIL_BYTES, max(entry.size - TAIL_BYTES, 0))
        _require_no_other_format(head, tail, entry, texts=options.dtype != "uint8")
        if (found := _shard_layout(head[:HEADER_BYTES], entry.size)) is not None:
            if options.dtype is not None and np.dtype(options.dtype).itemsize != found.itemsize:
                raise ValueError(
                    f"has tokens of {found.itemsize} bytes by its header, and --dtype says "
                    f"{options.dtype}"
                )
            return found, HEADER_BYTES
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


def _require_no_other_format(head: bytes, tail: bytes, entry: Input, *, texts: bool) -> None:
    """Refuse a file that begins as one of another format does, and the tokens of a corpus."""
    known = other_format(head, entry.size, tail, texts=texts)
    if known is None and os.path.lexists(idx_path(entry.path.removesuffix(".bin"))):
        known = "the tokens of a corpus, whose .idx is beside it (merge copies corpora)"
    if known is not None:
        raise ValueError(f"is {known}, and no array of token ids")


def _shard_layout(head: bytes, size: int) -> np.dtype[Any] | None:
    """Return the type of a shard's tokens, or None if it has no header of the nanoGPT family."""
    numbers = np.frombuffer(head[: len(head) // 4 * 4], "<i4")
    kind = int(numbers[0]) if len(numbers) else 0
    if kind in OTHER_HEADERS:
        raise ValueError("is a file of llm.c, by its header, that has no shard of tokens")
    if kind not in HEADERS:
        return None
    if len(head) < HEADER_BYTES:
        raise ValueError(f"has a header of the nanoGPT family, which is cut at {len(head)} bytes")
    version, count, width = numbers[1:4].tolist()
    if not 0 < version < 100:
        raise ValueError(f"has a header of the nanoGPT family, of the unknown version {version}")
    if numbers[4:].any():
        raise ValueError("has a header of the nanoGPT family, with numbers where it has zeros")
    width = HEADERS[kind] or width
    if width not in (2, 4):
        raise ValueError(f"has a header of the nanoGPT family, by which a token has {width} bytes")
    if count * width != size - HEADER_BYTES:
        raise ValueError(
            f"has a header of the nanoGPT family, by which {count * width} bytes of tokens follow, "
            f"and {size - HEADER_BYTES} do"
        )
    return np.dtype(f"<u{width}")


def _mask_beside(path: str) -> str:
    """Return the path of the mask of the loss of an array, if there is one; else an empty text."""
    masks = (other for other in paths_beside(path, "raw") if not other.endswith(ENDS))
    return next(filter(os.path.lexists, masks), "")


@contextlib.contextmanager
def _open_mask(path: str, count: int) -> Iterator[int | None]:
    """Open the mask beside an array, which has a byte for each token; None if there is none."""
    if not path:
        yield None
        return
    with closing_fd(open_regular(path)) as descriptor:
        size = os.fstat(descriptor).st_size
        if size != count:
            raise ValueError(f"{path} has {size} bytes for {count} tokens; {IGNORE}")
        yield descriptor


def _stated_ends(entry: Input, count: int) -> NDArray[np.int64] | None:
    """Return the ends of documents, in tokens, of the index beside an array, if there is one."""
    path = entry.path + ENDS
    if not os.path.lexists(path):
        return None
    with closing_fd(open_regular(path)) as descriptor:
        size = os.fstat(descriptor).st_size
        ends = np.frombuffer(read_range(descriptor, 0, size - size % 8), "<u8")
    last = int(ends[-1]) if len(ends) else 0
    whole = size % 8 == 0 and last == count and int(ends.max(initial=0)) == last
    ordered = np.array(ends, np.int64) if whole else np.zeros(0, np.int64)
    if not whole or bool((np.diff(ordered) < 0).any()):
        raise ValueError(f"{path} does not list ascending ends of documents, up to {count} tokens")
    return ordered


class _Array(NamedTuple):
    """An open array of ids."""

    descriptor: int
    dtype: np.dtype[Any]
    begin: int  # byte of the first token
    size: int  # tokens
    losses: int | None  # descriptor of the mask, a byte for each token

    def read(self, low: int, high: int) -> list[NDArray[Any]]:
        """Return tokens [low, high), and their losses if there is a mask."""
        item = self.dtype.itemsize
        content = read_range(self.descriptor, self.begin + low * item, self.begin + high * item)
        found: list[NDArray[Any]] = [np.frombuffer(content, self.dtype)]
        if self.losses is not None:
            found.append(np.frombuffer(read_range(self.losses, low, high), np.uint8))
        return found


def _documents(
    array: _Array, ends: NDArray[np.int64] | None, eod: int | None
) -> Iterator[list[pa.Array]]:
    """Yield the documents of an array in batches, and their losses; the last may have no end."""
    step = BATCH_BYTES // array.dtype.itemsize
    carried = [part[:0] for part in array.read(0, 0)]
    used = 0  # ends already yielded; several are equal where documents have no token
    count = array.size
    empties = ends is not None and len(ends) > 0  # also where there are no tokens at all
    for low in range(0, max(count, int(empties)), step):
        high = min(low + step, count)
        parts = [np.concatenate(pair) for pair in zip(carried, array.read(low, high), strict=True)]
        before = len(carried[0])
        if ends is None:
            own = np.flatnonzero(parts[0][before:] == eod) + 1
        else:
            first, used = used, int(np.searchsorted(ends, high, "right"))
            own = ends[first:used] - low
        own = own + before
        if high == count and (not len(own) or own[-1] < len(parts[0])):
            own = np.append(own, len(parts[0]))
        if not len(own):
            carried = parts
            continue
        offsets = pa.array(np.concatenate([[0], own]).astype(np.int64))
        last = int(own[-1])
        carried = [part[last:] for part in parts]
        yield [pa.LargeListArray.from_arrays(offsets, pa.array(part[:last])) for part in parts]
