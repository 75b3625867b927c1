"""The rows of text inputs: lines of JSON or of text, whole files, rows of Parquet files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypedDict

import msgspec

from distcache.ingest.inputs import Input
from distcache.ingest.pieces import InputPiece
from distcache.ingest.read_options import TextOptions
from distcache.io.files import closing_fd, open_regular

__all__ = ["Line", "Row", "lines_of_range", "lines_of_stream", "text_rows"]

SLICE: Final = 256  # rows of a Parquet file that are Python objects at a time
MOST_FIELDS: Final = 10  # names in an error message
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


BLOCK = 1 << 20  # bytes of a read


class Row(NamedTuple):
    """A parsed row, or the reason why it was rejected.

    Attributes
    ----------
    place : int
        Its number in the piece, or in the row group, from 0.
    texts : list of str or None
        Each becomes a sequence; None for a blank line.
    reason : str or None
        What is wrong with it.
    byte : int or None
        Where it begins in the (decompressed) file.
    group : int or None
        Its row group.
    """

    place: int
    texts: list[str] | None
    reason: str | None = None
    byte: int | None = None
    group: int | None = None


def text_rows(entry: Input, piece: InputPiece, options: TextOptions) -> Iterator[Row]:
    """Yield the rows of a piece of an input.

    Parameters
    ----------
    entry : Input
        The input.
    piece : InputPiece
        Of it.
    options : TextOptions
        What a row is.

    Yields
    ------
    Row
        In order. Invalid rows have a reason, and so has the last one if the rest of the piece
        cannot be read.
    """
    if entry.format == "parquet":
        return _parquet_rows(entry, piece, options)
    if entry.format == "jsonl":
        return _line_rows(entry, piece, options, json_decoder(options.text_key))
    if options.documents == "line":
        return _line_rows(entry, piece, options, _decode_text)
    return iter([_file_row(entry, options)])


def json_decoder(key: str) -> Callable[[bytes], list[str] | None]:
    """Return a function that extracts the text, or the list of texts, from a JSON line.

    Other fields are skipped, not decoded. Lines that the strict parser refuses are parsed by
    Python's, which Megatron uses: it accepts NaN and lone surrogates.
    """
    kind = TypedDict("Line", {key: str | list[str]})  # type: ignore[misc]  # known at run time
    decode = msgspec.json.Decoder(kind).decode

    def texts_of(content: bytes) -> list[str] | None:
        if not content.strip():
            return None
        try:
            found: Any = decode(content)[key]  # type: ignore[literal-required]
        except msgspec.ValidationError as error:
            raise ValueError(_explain(str(error), content)) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            found = _decode_leniently(content, key, error)
        return found if isinstance(found, list) else [found]

    return texts_of


def _decode_leniently(content: bytes, key: str, error: Exception) -> Any:
    try:
        document = json.loads(content)
    except UnicodeDecodeError as wrong:
        raise ValueError(f"invalid UTF-8 at byte {wrong.start} of the line") from error
    except (ValueError, RecursionError):
        raise ValueError(_explain(str(error), content)) from error
    if not isinstance(document, dict) or key not in document:
        message = f"expected an object with a field {key!r}"
        raise ValueError(_explain(message, content)) from error
    found = document[key]
    texts = found if isinstance(found, list) else [found]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"expected a text, or a list of texts, in field {key!r}") from error
    return found


def _explain(problem: str, content: bytes) -> str:
    """Add the fields of the line to a message, or that it is not a JSON line."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict):
        names = ", ".join(map(repr, list(document)[:MOST_FIELDS])) or "none"
        return f"{problem}; its fields are {names}: name one with --text-key"
    if content.lstrip()[:1] in (b"[", b"{", b"]", b"}") or document is not None:
        return f"{problem}; expected JSON lines: an object on every line"
    return problem


def _decode_text(content: bytes) -> list[str]:
    try:
        return [content.removesuffix(b"\r").decode("utf-8")]
    except UnicodeDecodeError as error:
        raise ValueError(f"invalid UTF-8 at byte {error.start} of the line") from error


def _line_rows(
    entry: Input,
    piece: InputPiece,
    options: TextOptions,
    decode: Callable[[bytes], list[str] | None],
) -> Iterator[Row]:
    place, byte = -1, piece.begin
    try:
        for place, line in enumerate(_lines(entry, piece, options)):
            byte = line.position + line.size + 1
            yield _line_row(place, line, options, decode)
    except OSError as error:
        reason = f"cannot be read from here on: {error.strerror or error}"
        yield Row(place + 1, [], reason, byte)


def _lines(entry: Input, piece: InputPiece, options: TextOptions) -> Iterator[Line]:
    # An escaped character takes up to six bytes of JSON; the text is checked after decoding.
    limit = options.longest * (6 if entry.format == "jsonl" else 1) + (1 << 20)
    if entry.compression:
        return lines_of_stream(entry.path, entry.compression, limit)
    return lines_of_range(entry.path, piece.begin, piece.end, limit)


def _line_row(
    place: int, line: Line, options: TextOptions, decode: Callable[[bytes], list[str] | None]
) -> Row:
    content = line.content
    if content is None:
        return Row(place, [], _too_long(f"{line.size} bytes", options), line.position)
    if line.position == 0:
        content = content.removeprefix(BYTE_ORDER_MARK)
    try:
        texts = decode(content)
    except ValueError as error:
        return Row(place, [], str(error), line.position)
    return _checked(Row(place, texts, None, line.position), options)


def _checked(row: Row, options: TextOptions) -> Row:
    texts = row.texts or []
    if 4 * sum(map(len, texts)) <= options.longest:
        return row
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    if size > options.longest:
        return row._replace(texts=[], reason=_too_long(f"{size} bytes", options))
    return row


def _too_long(size: str, options: TextOptions) -> str:
    return (
        f"has {size}, more than the {options.longest} that a document may have; raise "
        "--max-document-size, or leave it out by --on-error skip"
    )


def _file_row(entry: Input, options: TextOptions) -> Row:
    try:
        content = read_whole(entry.path, entry.compression, options.longest)
        if content is None:
            return Row(0, [], _too_long("too many bytes", options))
        return Row(0, [content.decode("utf-8")])
    except UnicodeDecodeError as error:
        return Row(0, [], f"invalid UTF-8 at byte {error.start}")
    except OSError as error:
        return Row(0, [], f"cannot be read: {error.strerror or error}")


def _parquet_rows(entry: Input, piece: InputPiece, options: TextOptions) -> Iterator[Row]:
    from distcache.ingest.parquet import batches_of, open_parquet, values_of  # noqa: PLC0415

    with open_parquet(entry.path) as file:
        for group in range(piece.begin, piece.end):
            place = 0
            try:
                for batch in batches_of(file, group, [options.text_key], SLICE):
                    for value in values_of(batch.column(0)):
                        yield _checked(_value_row(place, value, group), options)
                        place += 1
            except ValueError as error:
                yield Row(place, [], str(error), None, group)


def _value_row(place: int, value: Any, group: int) -> Row:
    if isinstance(value, UnicodeDecodeError):
        return Row(place, [], f"invalid UTF-8 at byte {value.start} of the text", None, group)
    texts = value if isinstance(value, list) else [value]
    if any(text is None for text in texts):
        return Row(place, [], "is null, or has a null in it", None, group)
    return Row(place, texts, None, None, group)


class Line(NamedTuple):
    """A line without its end.

    Attributes
    ----------
    position : int
        Where it begins in the (decompressed) file, in bytes.
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
        stream: Any = file
        if compression is not None:
            import pyarrow as pa  # noqa: PLC0415

            stream = pa.CompressedInputStream(pa.PythonFile(file, "r"), compression)
        while begin and (skipped := stream.read(min(begin, BLOCK))):
            begin -= len(skipped)
        while block := stream.read(size):
            yield block


def _line_start(descriptor: int, begin: int, end: int) -> int:
    """Return the position of the first line that begins in [begin, end), else `end`."""
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
