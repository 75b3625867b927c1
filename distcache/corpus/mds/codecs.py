"""Decompress shards, never to more bytes than they must have."""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any, Final, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from distcache.errors import CorpusError
from distcache.extras import needing
from distcache.storage.files import read_range
from distcache.storage.watchdog import tick

Buffer = bytes | memoryview

PIECE_BYTES: Final = 256 << 10  # bytes that are unpacked at a time: they stay in a core's cache
READ_BYTES: Final = 1 << 20
READ_AHEAD: Final = 128 << 10  # of zstandard
WHOLE: Final = ("br", "snappy")  # are unpacked as a whole
# Names of the errors of zlib, bz2, zstandard and cramjam; the last two need not be installed.
DAMAGE: Final = ("error", "EOFError", "ValueError", "OSError", "ZstdError", "DecompressionError")


def require_library(codec: str) -> None:
    """Require the library that a codec needs.

    Raises
    ------
    ConfigError
        With what to install.
    """
    with needing(codec):
        if codec == "zstd":
            import zstandard  # noqa: F401, PLC0415
        elif codec in WHOLE:
            import cramjam  # noqa: F401, PLC0415


class _Source(Protocol):
    """Where compressed bytes come from, one after the other; such as an `io.BytesIO`."""

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes, perhaps fewer than asked for; none at the end."""
        ...


class FileSource:
    """The bytes of an open file, one after the other.

    Parameters
    ----------
    descriptor : int
        Descriptor of the file.
    size : int
        Bytes of it.
    seen : callable or None
        Receives all that is read.
    """

    def __init__(
        self,
        descriptor: int,
        size: int,
        seen: Callable[[bytes], object] | None = None,
    ) -> None:
        self._seen = seen
        self._descriptor = descriptor
        self._size = size
        self._at = 0

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes, perhaps fewer than asked for; none at the end."""
        step = READ_BYTES if size < 0 else min(size, READ_BYTES)
        end = min(self._at + step, self._size)
        data = read_range(self._descriptor, self._at, end)
        self._at = end
        if self._seen is not None:
            self._seen(data)
        return data


class MemorySource:
    """Bytes in memory, one after the other; none is copied before it is asked for."""

    def __init__(self, data: bytes | bytearray) -> None:
        self._data = memoryview(data)
        self._at = 0

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes, perhaps fewer than asked for; none at the end."""
        end = self._at + (READ_BYTES if size < 0 else min(size, READ_BYTES))
        data = bytes(self._data[self._at : end])
        self._at += len(data)
        return data


def unpack(codec: str, source: _Source, size: int, path: str) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of a compressed file, in pieces that stay valid.

    Parameters
    ----------
    codec : str
        One of `distcache.corpus.mds.index_json.CODECS`, not the first.
    source : object with `read`
        Source of the compressed bytes.
    size : int
        Bytes that they must decompress to.
    path : str
        Path of the file, for messages.

    Raises
    ------
    CorpusError
        If it does not decompress to exactly as many.
    OSError
        If it cannot be read.
    """
    require_library(codec)
    pieces = _pieces(codec, source, size)
    done = 0
    while True:
        try:
            piece = next(pieces, None)
        except Exception as error:
            if type(error).__name__ not in DAMAGE or getattr(error, "errno", None):
                raise
            raise CorpusError(f"{path}: does not decompress: {error}") from error
        if piece is None:
            break
        done += len(piece)
        if done > size:
            break
        tick()
        yield np.frombuffer(piece, np.uint8)
    if done != size:
        more = "more than the " if done > size else f"{done} bytes, expected "
        raise CorpusError(f"{path}: decompresses to {more}{size} that the index says")


def _pieces(codec: str, source: _Source, size: int) -> Iterator[Buffer]:
    if codec in WHOLE:
        return _whole(codec, source, size)
    streams = {"zstd": _zstd, "gz": _gzip, "bz2": _bzip2}
    return streams[codec](source)


def _zstd(source: _Source) -> Iterator[Buffer]:
    import zstandard  # noqa: PLC0415

    decoder = zstandard.ZstdDecompressor(max_window_size=1 << 31)
    with decoder.stream_reader(
        cast(IO[bytes], source), read_size=READ_AHEAD, closefd=False
    ) as reader:
        while piece := reader.read(PIECE_BYTES):
            yield piece


def _gzip(source: _Source) -> Iterator[Buffer]:
    decoder = zlib.decompressobj(wbits=31)
    while True:
        data = decoder.unconsumed_tail or source.read(READ_BYTES)
        piece = decoder.decompress(data, PIECE_BYTES)
        if piece:
            yield piece
        if decoder.eof:  # members follow one another
            rest = decoder.unused_data.lstrip(b"\0") or source.read(READ_BYTES).lstrip(b"\0")
            if not rest:
                return
            decoder = zlib.decompressobj(wbits=31)
            if piece := decoder.decompress(rest, PIECE_BYTES):
                yield piece
        elif not (data or piece):
            raise ValueError("the stream has no end")


def _bzip2(source: _Source) -> Iterator[Buffer]:
    decoder = bz2.BZ2Decompressor()
    rest = b""
    while True:
        data = (rest or source.read(READ_BYTES)) if decoder.needs_input else b""
        rest = b""
        if decoder.needs_input and not data:
            raise ValueError("the stream has no end")
        if piece := decoder.decompress(data, PIECE_BYTES):
            yield piece
        if decoder.eof:  # streams follow one another
            rest = decoder.unused_data or source.read(READ_BYTES)
            if not rest:
                return
            decoder = bz2.BZ2Decompressor()


def _whole(codec: str, source: _Source, size: int) -> Iterator[Buffer]:
    import cramjam  # noqa: PLC0415

    data = bytearray()
    while piece := source.read(READ_BYTES):
        data += piece
    if codec == "snappy" and cramjam.snappy.decompress_raw_len(data) != size:
        raise ValueError("its length is not the one that the index says")
    room: Any = np.empty(size + 1, np.uint8)  # one byte more: what is too long does not fit exactly
    into = cramjam.brotli.decompress_into if codec == "br" else cramjam.snappy.decompress_raw_into
    yield memoryview(room)[: into(bytes(data), room)]
