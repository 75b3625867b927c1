"""Lines of files, compressed or not, and their text in UTF-8."""

from __future__ import annotations

import bz2
import lzma
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, BinaryIO, Final, NamedTuple

from distcache.storage.files import closing_fd, open_regular

READ_BYTES = 1 << 20  # bytes of a read
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
PYTHON: Final[dict[str | None, Any]] = {
    "bz2": bz2.BZ2Decompressor,
    "xz": partial(lzma.LZMADecompressor, lzma.FORMAT_XZ),
}


class Line(NamedTuple):
    """A line without its end."""

    position: int  # first byte of the line in the (decompressed) file
    content: bytes | None  # none if it is longer than the limit
    size: int  # bytes


def lines_of_range(path: str, begin: int, end: int, limit: int) -> Iterator[Line]:
    """Yield the lines of a file that begin in bytes [begin, end).

    Raises
    ------
    OSError
        If the file cannot be read.
    """
    with closing_fd(open_regular(path)) as descriptor:
        start = _line_start(descriptor, begin, end)
        if start >= end:
            return
        for line in _split(_blocks(descriptor, start), start, limit):
            if line.position >= end:
                return
            yield line


def lines_of_stream(path: str, compression: str, limit: int) -> Iterator[Line]:
    """Yield the lines of a compressed file; positions are of the decompressed data.

    Raises
    ------
    OSError
        If the file cannot be read, is damaged, or ends too early.
    """
    yield from _split(_decompressed(path, compression), 0, limit)


def read_whole(path: str, compression: str | None, limit: int) -> bytes | None:
    """Return the (decompressed) content of a file, or None if it is longer than the limit.

    Raises
    ------
    OSError
        If the file cannot be read, is damaged, or ends too early.
    """
    content = bytearray()
    for block in _decompressed(path, compression):
        content += block
        if len(content) > limit:
            return None
    return bytes(content)


def _decompressed(path: str, compression: str | None) -> Iterator[bytes]:
    """Yield the decompressed data of a file, up to the last byte before any damage.

    Arrow discards the decompressed part of a damaged block, so that block is read again in smaller
    ones.
    """
    position = 0
    for size in (READ_BYTES, 4096, 1):
        try:
            for block in _blocks_from(path, compression, position, size):
                position += len(block)
                yield block
        except OSError:
            if size == 1 or compression is None:
                raise
        else:
            return


def _blocks_from(path: str, compression: str | None, begin: int, size: int) -> Iterator[bytes]:
    with os.fdopen(open_regular(path), "rb") as file:
        if compression is not None and os.fstat(file.fileno()).st_size == 0:
            raise OSError("Truncated compressed stream: the file is empty")
        stream: Any = file
        if compression in PYTHON:
            stream = _Streams(file, PYTHON[compression])
        elif compression is not None:
            import pyarrow as pa  # noqa: PLC0415

            stream = pa.CompressedInputStream(pa.PythonFile(file, "r"), compression)
        try:
            while begin and (skipped := stream.read(min(begin, READ_BYTES))):
                begin -= len(skipped)
            while block := stream.read(size):
                yield block
        except (EOFError, lzma.LZMAError) as error:
            raise OSError(f"Truncated or damaged compressed stream: {error}") from error


class _Streams:
    """Compressed streams that follow one another, read as one.

    Python's own files of them end without a word at what is no stream. Zeros between streams of xz
    are padding (its file format, 2.2).

    Parameters
    ----------
    file : binary file
        Read from where it is.
    make : callable
        Returns a decompressor.
    """

    def __init__(self, file: BinaryIO, make: Callable[[], Any]) -> None:
        self._file, self._make = file, make
        self._stream: Any = None
        self._left = b""  # after the end of a stream
        self._ended = False  # whether a stream has

    def read(self, size: int) -> bytes:
        """Return at most so many bytes; nothing at the end.

        Raises
        ------
        EOFError, OSError, lzma.LZMAError
            If a stream is damaged, or does not end.
        """
        while True:
            asks = self._stream is None or self._stream.needs_input
            content = self._next() if asks else b""
            if self._stream is None:
                if not content:
                    return b""
                self._stream = self._make()
            block: bytes = self._stream.decompress(content, size)
            if self._stream.eof:
                self._left, self._stream, self._ended = self._stream.unused_data, None, True
            elif asks and not content and not block:
                raise EOFError("it does not end")
            if block:
                return block

    def _next(self) -> bytes:
        """Return what comes next, after padding; nothing at the end of the file."""
        content = self._left or self._file.read(READ_BYTES)
        padded = self._stream is None and self._ended and self._make is PYTHON["xz"]
        while padded and content and not (content := content.lstrip(b"\0")):
            content = self._file.read(READ_BYTES)
        self._left = b""
        return content


def _line_start(descriptor: int, begin: int, end: int) -> int:
    """Return the position of the first line that begins in [begin, end), else `end`."""
    position = begin - 1
    while 0 <= position < end - 1:
        block = os.pread(descriptor, min(READ_BYTES, end - 1 - position), position)
        if not block:
            return end
        found = block.find(b"\n")
        if found >= 0:
            return position + found + 1
        position += len(block)
    return begin if begin == 0 else end


def _blocks(descriptor: int, position: int) -> Iterator[bytes]:
    while block := os.pread(descriptor, READ_BYTES, position):
        yield block
        position += len(block)


def _split(blocks: Iterator[bytes], position: int, limit: int) -> Iterator[Line]:
    """Split blocks at line ends. Lines beyond the limit are counted, not kept."""
    kept: list[bytes] = []
    size = 0
    for block in blocks:
        begin = 0
        while (end := block.find(b"\n", begin)) >= 0:
            size += end - begin
            kept.append(block[begin:end])
            yield Line(position, b"".join(kept) if size <= limit else None, size)
            position += size + 1
            kept, size, begin = [], 0, end + 1
        size += len(block) - begin
        kept = [*kept, block[begin:]] if size <= limit else []
    if size:
        yield Line(position, b"".join(kept) if size <= limit else None, size)


def text_of_line(line: Line) -> str:
    """Return a line's text, without a byte order mark at the begin of a file.

    Raises
    ------
    ValueError
        If it is not UTF-8, with the encoding that it seems to have.
    """
    assert line.content is not None, "a line that is too long has no text"
    return decoded(line.content, "of the line", at_begin=line.position == 0)


def decoded(content: bytes, where: str, *, at_begin: bool) -> str:
    """Return text in UTF-8.

    Parameters
    ----------
    content : bytes
        Text, which may begin with a byte order mark.
    where : str
        Unit in which bytes are counted, for the message.
    at_begin : bool
        Whether a file begins with it.

    Raises
    ------
    ValueError
        If it is not UTF-8.
    """
    if at_begin:
        content = content.removeprefix(BYTE_ORDER_MARK)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"invalid UTF-8 at byte {error.start} {where}") from error
