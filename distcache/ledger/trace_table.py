"""A trace as a table, with a row for each part of a sample: columns, JSON and Parquet."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distcache.corpus.idx import unused_name
from distcache.errors import ConfigError
from distcache.extras import needing
from distcache.ledger.source_rows import UNKNOWN, grouped
from distcache.ledger.trace import Trace
from distcache.ledger.traced_run import DealtSamples
from distcache.ledger.traced_split import TracedSamples
from distcache.storage.files import atomic_write, no_space_as_error

OF_STEP: Final = ("step", "job", "skipped", "rolled_back")
OF_SAMPLE: Final = ("position", "micro_batch", "rank", "slot", "corpus")
OF_PART: Final = ("sequence", "document", "begin", "end", "label_only", "source", "row", "line")

# Columns of numbers that are close to one another, or all different; the others repeat. Compressing
# them, too, would take twice as long, and save a tenth.
DELTA: Final = (
    "step",
    "position",
    "sequence",
    "document",
    "begin",
    "end",
    "row",
    "line",
)
SEARCHED: Final = ("step", "position", "corpus", "document")  # whose groups of rows have bounds


class Words(NamedTuple):
    """A column of text that repeats: codes, negative for none, and what they stand for."""

    codes: NDArray[np.int32]
    words: list[str]

    def values(self) -> list[str | None]:
        """Return the text of each row."""
        return [None if code < 0 else self.words[code] for code in self.codes.tolist()]


Columns = dict[str, NDArray[Any] | Words]


def columns_of(found: DealtSamples, trace: Trace, *, sources: bool = True) -> Columns:
    """Return the columns of some samples, with a row for each part.

    Parameters
    ----------
    found : DealtSamples
        The samples.
    trace : Trace
        The split that they are of.
    sources : bool
        Whether the rows of files are found that documents were made of.

    Returns
    -------
    dict of str to ndarray or Words
        Columns. Those of steps and ranks are missing if they are not known, and those of jobs,
        skipped steps and rollbacks if the run has none.
    """
    traced = found.traced
    counts = np.diff(traced.bounds)
    columns: Columns = {}
    if found.steps is not None:
        rows = np.repeat(found.rows, counts)
        columns["step"] = found.steps.numbers[rows]
        of_steps: tuple[tuple[str, NDArray[Any]], ...] = (
            ("job", found.steps.jobs),
            ("skipped", found.steps.skipped),
            ("rolled_back", found.steps.rolled_back),
        )
        columns |= {name: values[rows] for name, values in of_steps if values.any()}
    columns["position"] = np.repeat(traced.positions, counts)
    if found.dealt is not None:
        for name, values in zip(("micro_batch", "rank", "slot"), found.dealt, strict=True):
            columns[name] = np.repeat(values.astype(np.int32), counts)
    corpora = np.repeat(traced.corpora, counts)
    columns["corpus"] = Words(corpora, trace.corpora)
    columns["sequence"] = traced.sequences
    plain = all(trace.split.is_plain(corpus) for corpus in np.unique(traced.corpora).tolist())
    columns["document"] = traced.sequences if plain else _documents(trace, traced, corpora)
    columns["begin"], columns["end"] = traced.begins, traced.ends
    columns["label_only"] = traced.label_only
    if sources:
        columns |= _sources(trace, traced, corpora)
    return columns


def _documents(
    trace: Trace, traced: TracedSamples, corpora: NDArray[np.int32]
) -> NDArray[np.int32]:
    documents = np.empty(len(corpora), np.int32)  # as sequences
    for corpus, here in grouped(corpora):
        documents[here] = trace.documents(corpus, traced.sequences[here])
    return documents


def _sources(trace: Trace, traced: TracedSamples, corpora: NDArray[np.int32]) -> Columns:
    words: dict[str, int] = {}
    codes = np.full(len(corpora), UNKNOWN, np.int32)
    rows, lines = np.full((2, len(corpora)), UNKNOWN, np.int64)
    for corpus, here in grouped(corpora):
        found = trace.sources(corpus, traced.sequences[here])
        # The last is for unknown ones.
        own = [words.setdefault(path, len(words)) for path in found.paths] + [UNKNOWN]
        codes[here] = np.array(own, np.int32)[found.files]
        rows[here], lines[here] = found.rows, found.lines
    return {"source": Words(codes, list(words)), "row": rows, "line": lines}


def samples_of_table(columns: Columns) -> Iterator[dict[str, Any]]:
    """Yield a JSON object for each sample, with its parts and what is known of these."""
    values = {
        name: column.values() if isinstance(column, Words) else column.tolist()
        for name, column in columns.items()
    }
    names = [name for name in (*OF_STEP, *OF_SAMPLE) if name in values]
    count = len(values["position"])
    rows = ({name: values[name][row] for name in values} for row in range(count))
    for _, group in itertools.groupby(rows, key=lambda row: [row[name] for name in names]):
        own = list(group)
        parts = [
            {name: row[name] for name in OF_PART if row.get(name, UNKNOWN) not in (None, UNKNOWN)}
            for row in own
        ]
        yield {name: own[0][name] for name in names} | {"parts": parts}


def write_parquet(path: str | Path, parts: Iterable[Columns]) -> int:
    """Write a table, some rows at a time; it appears with its name when it is complete.

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

    def array(column: NDArray[Any] | Words, name: str) -> Any:
        if isinstance(column, Words):
            codes = pa.array(column.codes, mask=column.codes < 0)
            return pa.DictionaryArray.from_arrays(codes, pa.array(column.words, pa.string()))
        if name in ("row", "line"):
            return pa.array(column, mask=column < 0)
        return pa.array(column)

    rows = 0
    writer = None
    with no_space_as_error(str(path)), atomic_write(path) as stream:
        for columns in parts:
            arrays = {name: array(column, name) for name, column in columns.items()}
            if writer is not None:  # a split without steps lacks what one with steps has
                count = len(arrays["begin"])
                arrays = {
                    field.name: arrays.get(field.name, pa.nulls(count, field.type))
                    for field in writer.schema
                }
            table = pa.table(arrays)
            rows += len(table)
            if writer is None:
                delta = [name for name in columns if name in DELTA]
                writer = pq.ParquetWriter(
                    stream,
                    table.schema,
                    compression="none",
                    use_dictionary=[name for name in columns if name not in DELTA],
                    column_encoding=dict.fromkeys(delta, "DELTA_BINARY_PACKED"),
                    write_statistics=[name for name in columns if name in SEARCHED],
                )
            writer.write_table(table)
        if writer is not None:
            writer.close()
    return rows


def documents_in(found: Iterable[DealtSamples], trace: Trace) -> dict[int, NDArray[np.int64]]:
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
