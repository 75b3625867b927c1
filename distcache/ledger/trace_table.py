"""A trace as a table with a row for each part of a sample: JSON lines, Parquet, a terminal's rows.

A table has the columns that are known; what is not known in one row is null.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distcache.corpus.idx import unused_name
from distcache.corpus.source_rows import UNKNOWN, grouped
from distcache.errors import ConfigError
from distcache.extras import needing
from distcache.ledger.trace import Trace
from distcache.ledger.traced_run import StepSamples, TracedRun
from distcache.storage.files import atomic_write, no_space_as_error

# Columns, and the type of each in Parquet.
COLUMNS: Final = {
    "split": "text",
    "step": "int64",
    "job": "int32",
    "skipped": "bool",
    "rolled_back": "bool",
    "position": "int64",
    "micro_batch": "int32",
    "rank": "int32",
    "slot": "int32",
    "corpus": "text",
    "sequence": "int32",
    "document": "int32",
    "begin": "int32",
    "end": "int32",
    "label_only": "int8",
    "source": "text",
    "row": "int64",
    "line": "int64",
}
STEP_COLUMNS: Final = ("step", "job", "skipped", "rolled_back")
RANK_COLUMNS: Final = ("micro_batch", "rank", "slot")
SOURCE_COLUMNS: Final = ("source", "row", "line")
# Columns that are known of each part.
KNOWN: Final = ("split", "position", "corpus", "sequence", "document", "begin", "end", "label_only")
# Columns of numbers that are close to one another, or all different; the others repeat. Compressing
# them, too, would take twice as long, and save a tenth.
DELTA: Final = ("step", "position", "sequence", "document", "begin", "end", "row", "line")
SEARCHED: Final = ("step", "position", "corpus", "document")  # whose groups of rows have bounds


class Words(NamedTuple):
    """A column of text that repeats: codes, negative for none, and what they stand for."""

    codes: NDArray[np.int32]
    words: list[str]


Column = NDArray[Any] | Words | None
"""Numbers, negative for those that are not known, or text; None if nothing is known."""


def known_columns(runs: Collection[TracedRun], *, sources: bool = True) -> list[str]:
    """Return the columns of a table of runs: those of steps and ranks only if one knows them.

    Parameters
    ----------
    runs : collection of TracedRun
        The runs.
    sources : bool
        Whether the rows of files are found that documents were made of.
    """
    stepped = [run for run in runs if run.steps is not None]
    ranked = [run for run in stepped if run.sampling.ranks_of(np.empty(0, np.int64)) is not None]
    unknown = [
        *(() if stepped else STEP_COLUMNS),
        *(() if ranked else RANK_COLUMNS),
        *(() if sources else SOURCE_COLUMNS),
    ]
    return [name for name in COLUMNS if name not in unknown]


def columns_of(found: StepSamples, trace: Trace, names: Iterable[str]) -> dict[str, Column]:
    """Return columns of some samples, with a row for each part.

    Parameters
    ----------
    found : StepSamples
        The samples.
    trace : Trace
        The split that they are of.
    names : iterable of str
        Names of the columns, of those of `COLUMNS`.
    """
    traced = found.traced
    counts = np.diff(traced.bounds)
    columns: dict[str, Column] = dict.fromkeys(names)
    columns["split"] = Words(np.zeros(len(traced.sequences), np.int32), [trace.split])
    if found.steps is not None:
        rows, steps = np.repeat(found.rows, counts), found.steps
        known = steps.numbers > 0
        flags = (np.where(known, flag, -1) for flag in (steps.skipped, steps.rolled_back))
        own: list[NDArray[Any]] = [steps.numbers, steps.jobs, *flags]
        for name, values in zip(STEP_COLUMNS, own, strict=True):
            columns[name] = values[rows]
    columns["position"] = np.repeat(traced.positions, counts)
    for name, values in zip(RANK_COLUMNS, found.ranks or (), strict=found.ranks is not None):
        columns[name] = np.repeat(values, counts)
    corpora = np.repeat(traced.corpora, counts)
    columns["corpus"] = Words(corpora, trace.corpora)
    columns["sequence"], columns["document"] = traced.sequences, _documents(found, trace)
    columns["begin"], columns["end"] = traced.begins, traced.ends
    columns["label_only"] = traced.label_only
    if "source" in columns:
        columns |= _sources(found, trace, corpora)
    return columns


def _documents(found: StepSamples, trace: Trace) -> NDArray[np.int32]:
    """Return the document of each part."""
    traced = found.traced
    if all(trace.is_plain(corpus) for corpus in np.unique(traced.corpora).tolist()):
        return traced.sequences
    documents = np.empty(len(traced.sequences), np.int32)  # as sequences
    for corpus, here in grouped(np.repeat(traced.corpora, np.diff(traced.bounds))):
        documents[here] = trace.documents(corpus, traced.sequences[here])
    return documents


def _sources(found: StepSamples, trace: Trace, corpora: NDArray[np.int32]) -> dict[str, Column]:
    """Return the source file of each part, and the row or line of it."""
    words: dict[str, int] = {}
    codes = np.full(len(corpora), UNKNOWN, np.int32)
    rows, lines = np.full((2, len(corpora)), UNKNOWN, np.int64)
    for corpus, here in grouped(corpora):
        known = trace.sources(corpus, found.traced.sequences[here])
        # The last is for unknown ones.
        own = [words.setdefault(path, len(words)) for path in known.paths] + [UNKNOWN]
        codes[here] = np.array(own, np.int32)[known.files]
        rows[here], lines[here] = known.rows, known.lines
    return {"source": Words(codes, list(words)), "row": rows, "line": lines}


def rows_of(columns: Mapping[str, Column]) -> Iterator[dict[str, Any]]:
    """Yield each row with all columns; None for what is not known."""
    count = len(columns["position"])  # type: ignore[arg-type]
    values = [_values(column, COLUMNS[name], count) for name, column in columns.items()]
    for row in zip(*values, strict=True):
        yield dict(zip(columns, row, strict=True))


def _values(column: Column, kind: str, count: int) -> list[Any]:
    if column is None:
        return [None] * count
    if isinstance(column, Words):
        return [None if code < 0 else column.words[code] for code in column.codes.tolist()]
    found = [None if value < 0 else value for value in column.tolist()]
    return [value if value is None else bool(value) for value in found] if kind == "bool" else found


def write_parquet(
    path: str | Path, names: Iterable[str], parts: Iterable[Mapping[str, Column]]
) -> int:
    """Write a table, some rows at a time; it appears with its name when it is complete.

    Parameters
    ----------
    path : path
        Path of the table.
    names : iterable of str
        Names of the columns, in their order.
    parts : iterable of mappings of str to ndarray, Words or None
        Columns of some rows.

    Returns
    -------
    int
        Number of rows.

    Raises
    ------
    ConfigError
        If pyarrow is not installed.
    NoSpace
        If there is no room.
    """
    with needing("writing Parquet"):
        import pyarrow as pa  # noqa: PLC0415  of an extra
        import pyarrow.parquet as pq  # noqa: PLC0415
    text = pa.dictionary(pa.int32(), pa.string())
    kinds = {"text": text, "bool": pa.bool_()}
    schema = pa.schema(
        pa.field(
            name,
            kinds.get(COLUMNS[name]) or pa.type_for_alias(COLUMNS[name]),
            nullable=name not in KNOWN,
        )
        for name in names
    )

    def array(column: Column, kind: Any, count: int) -> Any:
        if column is None:
            return pa.nulls(count, kind)
        if isinstance(column, Words):
            codes = pa.array(column.codes, mask=column.codes < 0)
            return pa.DictionaryArray.from_arrays(codes, pa.array(column.words, pa.string()))
        mask = column < 0 if column.min(initial=0) < 0 else None
        return pa.array(column.astype(bool) if kind == pa.bool_() else column, kind, mask=mask)

    rows = 0
    with (
        no_space_as_error(str(path)),
        atomic_write(path) as stream,
        pq.ParquetWriter(
            stream,
            schema,
            compression="none",
            use_dictionary=[name for name in schema.names if name not in DELTA],
            column_encoding={n: "DELTA_BINARY_PACKED" for n in schema.names if n in DELTA},
            write_statistics=[name for name in schema.names if name in SEARCHED],
            write_batch_size=1 << 16,  # rows; with the default of 1,024 a tenth slower
        ) as writer,
    ):
        for columns in parts:
            count = len(columns["position"])  # type: ignore[arg-type]
            arrays = [array(columns[field.name], field.type, count) for field in schema]
            writer.write_table(pa.table(arrays, schema=schema))
            rows += count
    return rows


def documents_in(found: Iterable[StepSamples], trace: Trace) -> dict[int, NDArray[np.int64]]:
    """Return the documents that samples have, by the number of their corpus, ascending."""
    parts: dict[int, list[NDArray[np.int64]]] = {}
    for some in found:
        corpora = np.repeat(some.traced.corpora, np.diff(some.traced.bounds))
        for corpus, here in grouped(corpora):
            documents = trace.documents(corpus, some.traced.sequences[here])
            parts.setdefault(corpus, []).append(np.unique(documents))
    return {corpus: np.unique(np.concatenate(own)) for corpus, own in parts.items()}


def write_documents(
    path: str, documents: Mapping[int, NDArray[np.int64]], trace: Trace
) -> dict[str, int]:
    """Write documents as ``distcache select --drop`` reads them: a file for each corpus.

    Parameters
    ----------
    path : str
        Path of the ``.npy``; of several corpora, each file has the name of its corpus before the
        suffix.
    documents : mapping of int to ndarray of int64
        Documents of each corpus.
    trace : Trace
        The split.

    Returns
    -------
    dict of str to int
        Number of documents in each file.

    Raises
    ------
    ConfigError
        If there are none.
    """
    if not documents:
        raise ConfigError(f"{path}: there is no document to write")
    written, used = {}, set[str]()
    for corpus, own in documents.items():
        name = unused_name(trace.corpora[corpus], used)
        more = f"-{name}" if len(documents) > 1 else ""
        file = f"{path.removesuffix('.npy')}{more}.npy"
        with no_space_as_error(file), atomic_write(file) as stream:
            np.save(stream, own.astype(np.int64))
        written[file] = len(own)
    return written
