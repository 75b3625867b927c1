"""Parquet and Arrow files: their columns, groups of rows and batches. Imported only for them."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from distcache.errors import CorpusError
from distcache.ingest.inputs import Group, Input, TextOptions
from distcache.ingest.pieces import InputPiece
from distcache.ingest.readers.input_rows import InputRow
from distcache.ingest.tokenizers.tokenizer import Conversation
from distcache.storage.files import closing_fd, open_regular

SLICE: Final = 256  # rows that are Python objects at a time
REMEMBERED: Final = 16  # files whose footers, or lists of batches, are kept
_opening = threading.Lock()


class Table(Protocol):
    """An open file of columns."""

    schema: pa.Schema  # columns of the table

    def groups(self, column: str) -> tuple[Group, ...]:
        """Return the groups of rows, weighed by the bytes of one column."""
        ...

    def batches(self, group: int, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """Yield some columns of a group in batches, with bounded memory.

        Raises
        ------
        ValueError
            If it is damaged.
        """
        ...


@contextlib.contextmanager
def open_table(entry: Input) -> Iterator[Table]:
    """Open a Parquet or Arrow file.

    Footers are decoded once: decoding one takes time for every group and column.

    Raises
    ------
    CorpusError
        If it is not one.
    """
    try:
        with _opening:
            remembered = _remembered(entry.path, entry.size, entry.changed, entry.format)
        if isinstance(remembered, _Arrow):
            yield remembered
            return
        descriptor = open_regular(entry.path)
    except OSError as error:
        raise CorpusError(f"{entry.path}: cannot be opened: {error.strerror or error}") from error
    with open(descriptor, "rb") as stream:
        yield _Parquet(pq.ParquetFile(stream, metadata=remembered, pre_buffer=False))


@functools.lru_cache(REMEMBERED)
def _remembered(path: str, _size: int, _changed: int, kind: str) -> _Arrow | pq.FileMetaData:
    """Return the batches of an Arrow file, or the footer of a Parquet file."""
    with closing_fd(open_regular(path)) as descriptor:  # refuses what is no regular file
        if kind == "arrow":
            with _naming(path, "an Arrow file"):
                return _Arrow(path)
        with open(descriptor, "rb", closefd=False) as stream, _naming(path, "a Parquet file"):
            return pq.ParquetFile(stream, pre_buffer=False).metadata


@contextlib.contextmanager
def _naming(path: str, what: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise CorpusError(f"{path}: is not {what} that is whole: {_first_line(error)}") from error


class _Parquet:
    """A Parquet file; its groups are row groups."""

    def __init__(self, file: pq.ParquetFile) -> None:
        self.schema: pa.Schema = file.schema_arrow
        self._file = file

    def groups(self, column: str) -> tuple[Group, ...]:
        found = self._file.metadata
        groups = []
        for index in range(found.num_row_groups):
            group = found.row_group(index)
            chunks = (group.column(place) for place in range(group.num_columns))
            sizes = [
                chunk.total_uncompressed_size
                for chunk in chunks
                if (chunk.path_in_schema + ".").startswith(column + ".")
            ]
            groups.append(Group(group.num_rows, max(sum(sizes), 0)))
        return tuple(groups)

    def batches(self, group: int, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._file.iter_batches(rows, [group], list(columns), use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"cannot be read: {_first_line(error)}") from error


class _Arrow:
    """An Arrow file, in the form of files or of streams; its groups are record batches."""

    def __init__(self, path: str) -> None:
        source = pa.memory_map(path)
        try:
            file = pa.ipc.open_file(source)
            self._batches = [file.get_batch(index) for index in range(file.num_record_batches)]
            self.schema: pa.Schema = file.schema
        except pa.ArrowInvalid:
            source.seek(0)
            stream = pa.ipc.open_stream(source)
            self._batches = list(stream)
            self.schema = stream.schema

    def groups(self, column: str) -> tuple[Group, ...]:
        return tuple(
            Group(batch.num_rows, int(batch.column(column).nbytes)) for batch in self._batches
        )

    def batches(self, group: int, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        batch = self._batches[group]
        try:
            batch.validate(full=True)
        except pa.ArrowInvalid as error:
            raise ValueError(f"cannot be read: {_first_line(error)}") from error
        chosen = batch.select(list(columns))
        for begin in range(0, max(batch.num_rows, 1), rows):
            yield chosen.slice(begin, rows)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def column_type(table: Table, path: str, column: str) -> pa.DataType:
    """Return the type of a column.

    Raises
    ------
    CorpusError
        If no column, or several, have this name.
    """
    schema = table.schema
    places = schema.get_all_field_indices(column)
    if len(places) != 1:
        found = ", ".join(schema.names[:20])
        how = "no" if not places else "more than one"
        raise CorpusError(f"{path}: has {how} column {column!r}; it has {found}")
    kind: pa.DataType = schema.field(places[0]).type
    return kind


def with_groups(entry: Input, column: str) -> Input:
    """Return an input with its groups of rows, weighed by the bytes of one column."""
    with open_table(entry) as table:
        column_type(table, entry.path, column)
        return msgspec.structs.replace(entry, groups=table.groups(column))


def require_text_column(entry: Input, options: TextOptions) -> None:
    """Refuse a file whose column has the wrong type: texts, or conversations with `--messages`.

    A column of nulls has rows without either.

    Raises
    ------
    CorpusError
        Naming the file, the column and its type.
    """
    with open_table(entry) as table:
        kind = column_type(table, entry.path, options.field)
    if options.messages is not None:
        if not pa.types.is_null(kind) and not (
            is_list(kind) and pa.types.is_struct(kind.value_type)
        ):
            raise CorpusError(
                f"{entry.path}: column {options.field!r} is of type {kind}, expected lists of "
                "messages, each a struct with role and content"
            )
        return
    inner = kind.value_type if is_list(kind) or pa.types.is_dictionary(kind) else kind
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    if not any(test(inner) for test in (*tests, pa.types.is_null)):
        raise CorpusError(
            f"{entry.path}: column {options.field!r} is of type {kind}, expected texts or lists of "
            "texts"
        )


def is_list(kind: pa.DataType) -> bool:
    """Return whether a type is of lists, in any of Arrow's forms."""
    tests = (
        *(pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list),
        *(pa.types.is_list_view, pa.types.is_large_list_view),
    )
    return any(test(kind) for test in tests)


def values_of(column: pa.Array) -> list[Any]:
    """Return Python values, with errors instead of texts that are not UTF-8."""
    try:
        values: list[Any] = column.to_pylist()
        return values
    except UnicodeDecodeError:
        return [_value(column[place]) for place in range(len(column))]


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError as error:
        return error


def table_rows(entry: Input, piece: InputPiece, options: TextOptions) -> Iterator[InputRow]:
    """Yield the rows of some groups of a table."""
    with open_table(entry) as table:
        columns = [options.field]
        if options.messages is not None and len(table.schema.get_all_field_indices("tools")) == 1:
            columns.append("tools")
        before = 0
        for group in range(piece.begin, piece.end):
            place = 0
            try:
                for batch in table.batches(group, columns, SLICE):
                    values = (values_of(batch.column(name)) for name in columns)
                    for value, *tools in zip(*values, strict=True):
                        row = _value_row(place, value, group, before)
                        if options.messages is not None and row.value is not None:
                            row = row._replace(value=[Conversation(*_filled([value, *tools]))])
                        yield row
                        place += 1
            except ValueError as error:
                yield InputRow(place, None, str(error), None, group)
            before += entry.groups[group].rows


def _value_row(place: int, value: Any, group: int, before: int) -> InputRow:
    if isinstance(value, UnicodeDecodeError):
        return InputRow(
            place, None, f"invalid UTF-8 at byte {value.start} of the text", None, group
        )
    texts = value if isinstance(value, list) else [value]
    if any(text is None for text in texts):
        return InputRow(place, None, "is null, or has a null in it", None, group)
    return InputRow(place, texts, None, None, group, before)


def _filled(value: Any) -> Any:
    """Return a value without fields that are null: Arrow's structs have all fields in all rows."""
    if isinstance(value, dict):
        return {name: _filled(inner) for name, inner in value.items() if inner is not None}
    return [_filled(inner) for inner in value] if isinstance(value, list) else value
