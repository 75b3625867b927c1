"""Parquet files: their columns, row groups and batches. Imported only for them, with pyarrow."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from distcache.errors import CorpusError
from distcache.ingest.inputs import Group, Input
from distcache.ingest.read_options import TextOptions
from distcache.io.files import open_regular

__all__ = [
    "batches_of",
    "column_type",
    "columns_of",
    "open_parquet",
    "require_text_column",
    "values_of",
    "with_groups",
]


@contextlib.contextmanager
def open_parquet(path: str) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file.

    Raises
    ------
    CorpusError
        If it is not one.
    """
    try:
        descriptor = open_regular(path)
    except OSError as error:
        raise CorpusError(f"{path}: cannot be opened: {error.strerror}") from error
    with open(descriptor, "rb") as stream:
        try:
            file = pq.ParquetFile(stream, pre_buffer=False)
        except (pa.ArrowException, OSError) as error:
            raise CorpusError(
                f"{path}: is not a sound Parquet file: {_first_line(error)}"
            ) from error
        yield file


def column_type(file: pq.ParquetFile, path: str, column: str) -> pa.DataType:
    """Return the type of a column.

    Raises
    ------
    CorpusError
        If no column, or several, have this name.
    """
    schema = file.schema_arrow
    places = schema.get_all_field_indices(column)
    if len(places) != 1:
        found = ", ".join(schema.names[:20])
        how = "no" if not places else "more than one"
        raise CorpusError(f"{path}: has {how} column {column!r}; it has {found}")
    kind: pa.DataType = schema.field(places[0]).type
    return kind


def columns_of(file: pq.ParquetFile) -> list[str]:
    """Return the names of all columns."""
    names: list[str] = file.schema_arrow.names
    return names


def with_groups(entry: Input, column: str) -> Input:
    """Return an input with its row groups, weighed by the bytes of one column."""
    with open_parquet(entry.path) as file:
        column_type(file, entry.path, column)
        found = file.metadata
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
        return msgspec.structs.replace(entry, groups=tuple(groups))


def batches_of(
    file: pq.ParquetFile, group: int, columns: Sequence[str], rows: int
) -> Iterator[pa.RecordBatch]:
    """Yield some columns of a row group in batches, with bounded memory.

    Raises
    ------
    ValueError
        If it is damaged.
    """
    try:
        yield from file.iter_batches(rows, [group], list(columns), use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"cannot be read: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def require_text_column(entry: Input, options: TextOptions) -> None:
    """Refuse a Parquet file whose column does not have texts.

    Raises
    ------
    CorpusError
        Naming the file, the column and its type.
    """
    with open_parquet(entry.path) as file:
        kind = column_type(file, entry.path, options.text_key)
    inner = kind.value_type if _is_list(kind) or pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(inner) or pa.types.is_large_string(inner)):
        raise CorpusError(
            f"{entry.path}: column {options.text_key!r} is of type {kind}, expected texts or lists "
            "of texts"
        )


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def values_of(column: pa.Array) -> list[Any]:
    """Return Python values, with errors in the place of texts that are not UTF-8."""
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
