"""Parquet files, by pyarrow: what is in them, and one row group after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from distcache.errors import CorpusError
from distcache.files import open_regular
from distcache.ingest.inputs import Group, Input

__all__ = ["batches_of", "column_type", "columns_of", "open_parquet", "with_groups"]


@contextlib.contextmanager
def open_parquet(path: str) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file.

    Raises
    ------
    CorpusError
        If it is none.
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
        If there is none of this name, or several.
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
    """Yield some columns of a row group, so many rows at a time, in bounded memory.

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
