"""Text out of files, plain or compressed: lines of a range, or the whole, in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from distcache.files import open_regular

__all__ = ["Line", "lines_of_range", "lines_of_stream", "read_whole"]

BLOCK = 1 << 20  # bytes that are read at a time


class Line(NamedTuple):
    """A line without its end.

    Attributes
    ----------
    position : int
        The byte of the (decompressed) file at which it begins.
    content : bytes or None
        None if it is longer than the limit.
    size : int
        Bytes.
    """

    position: int
    content: bytes | None
    size: int


def lines_of_range(path: str, begin: int, end: int, limit: int) -> Iterator[Line]:
    """Yield the lines of a file that begin in bytes [begin, end).

    Raises
    ------
    OSError
        If the file cannot be read.
    """
    descriptor = open_regular(path)
    try:
        start = _line_start(descriptor, begin, end)
        if start >= end:
            return
        for line in _split(_blocks(descriptor, start), start, limit):
            if line.position >= end:
                return
            yield line
    finally:
        os.close(descriptor)


def lines_of_stream(path: str, compression: str, limit: int) -> Iterator[Line]:
    """Yield the lines of a compressed file; their positions are of what it decompresses to.

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
    """Yield what a file decompresses to, to the last byte before it is damaged.

    Arrow keeps what it has decompressed of a block to itself if the block is damaged: that is read
    once more in smaller ones.
    """
    position = 0
    for size in (BLOCK, 4096, 1):
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
        source = pa.PythonFile(file, "r")
        stream = source if compression is None else pa.CompressedInputStream(source, compression)
        while begin and (skipped := stream.read(min(begin, BLOCK))):
            begin -= len(skipped)
        while block := stream.read(size):
            yield block


def _line_start(descriptor: int, begin: int, end: int) -> int:
    """Return where the first line from `begin` on begins; `end` if none does before."""
    position = begin - 1
    while 0 <= position < end - 1:
        block = os.pread(descriptor, min(BLOCK, end - 1 - position), position)
        if not block:
            return end
        found = block.find(b"\n")
        if found >= 0:
            return position + found + 1
        position += len(block)
    return begin if begin == 0 else end


def _blocks(descriptor: int, position: int) -> Iterator[bytes]:
    while block := os.pread(descriptor, BLOCK, position):
        yield block
        position += len(block)


def _split(blocks: Iterator[bytes], position: int, limit: int) -> Iterator[Line]:
    """Cut blocks at line ends. What is beyond the limit is counted, and not kept."""
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
