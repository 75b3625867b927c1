"""`distcache trace`: which documents steps see, and which steps see a document."""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
from collections.abc import Iterator
from typing import Annotated, Any, Final

import numpy as np
import typer
from numpy.typing import NDArray

from distcache.cache.corpus_places import moves_from
from distcache.cache.deal import Deal
from distcache.cache.split_members import dataset_count
from distcache.cli.cache import TracedArgument
from distcache.cli.common import DealOption, JsonOption, LogOption, PrefixOption
from distcache.cli.consumed import TrainingLogOption, consumed_of
from distcache.cli.show import make_progress, note_document, print_json, print_records
from distcache.errors import ConfigError
from distcache.ledger.consumed import Consumed
from distcache.ledger.jobs_of_run import require_steps, runs_of
from distcache.ledger.sample_text import texts_of
from distcache.ledger.shared_corpora import MAX_SAID, shared_corpora
from distcache.ledger.steps import Sampling
from distcache.ledger.trace import Trace, trace
from distcache.ledger.trace_table import (
    COLUMNS,
    columns_of,
    documents_in,
    known_columns,
    rows_of,
    write_documents,
    write_parquet,
)
from distcache.ledger.traced_run import StepSamples, TracedRun
from distcache.ledger.wanted import wanted_sequences
from distcache.ranks.progress import Progress
from distcache.storage.units import counted
from distcache.storage.url import path_only

Traced = tuple[TracedRun, Iterator[StepSamples]]
"""A run over a split, and samples of it that are asked for."""

Wanted = tuple[Trace, dict[int, NDArray[np.int64]]]
"""A split, and sequences of its corpora that are searched for."""

RANGE: Final = re.compile(r"(\d{1,18})(?::(\d{1,18}))?")
MAX_SHOWN: Final = 32  # samples, on a terminal
SHOWN: Final = (
    "split",
    "step",
    "position",
    "micro_batch",
    "rank",
    "slot",
    "corpus",
    "document",
    "tokens",
    "source",
    "note",
)


def trace_command(
    context: typer.Context,
    cache: TracedArgument,
    steps: Annotated[
        str | None,
        typer.Option(
            metavar="N|A:B",
            help="Steps, by Megatron's numbers of iterations, from 1; B is not among them.",
        ),
    ] = None,
    positions: Annotated[
        str | None,
        typer.Option(metavar="N|A:B", help="Positions of the split, from 0; B is not among them."),
    ] = None,
    find: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORD|FILE",
            help="Documents that steps saw: CORPUS:NUMBERS of documents, SOURCE:NUMBERS of rows or "
            "lines, as 12,40-59 or all, CORPUS:FILE.npy, or a file with such lines; may be "
            "repeated.",
        ),
    ] = None,
    log: TrainingLogOption = None,
    split: Annotated[
        str | None,
        typer.Option(help="train, valid or test; by default train, and all of them with --find."),
    ] = None,
    dataset: Annotated[int, typer.Option(min=0, help="Number of the validation set.")] = 0,
    begin_at: Annotated[
        int,
        typer.Option(min=0, help="Samples that the run consumed before the first of this cache."),
    ] = 0,
    deal: DealOption = None,
    text: Annotated[int, typer.Option(min=0, help="Show the text of so many samples.")] = 0,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Tokenizer for the text, if a receipt names none.", callback=path_only),
    ] = None,
    sources: Annotated[
        bool, typer.Option("--sources/--no-sources", help="Find the rows of the source files.")
    ] = True,
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE.parquet|FILE.npy",
            callback=path_only,
            help="Write a table; or the numbers of the documents of one corpus, for select --drop.",
        ),
    ] = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
    log_format: LogOption = "auto",
) -> None:
    """Show which documents steps see, or which steps see documents.

    Steps follow from a training log, or from Megatron's options, of which those of batches are
    needed: --global-batch-size, --micro-batch-size, --data-parallel-size, --rampup-batch-size,
    --dataloader-type and so on, or a whole command after --.

    Examples
    --------
        distcache trace pretrain.h5 --steps 70000:70010 --log train.log

        distcache trace pretrain.h5 --positions 12:20 --text 3

        distcache trace pretrain.h5 --find corpora/web:123,456 --log train.log

        distcache trace pretrain.h5 --steps 1:20001 --global-batch-size 1024 -o steps.parquet
    """
    if sum([steps is not None, positions is not None, bool(find)]) != 1:
        raise ConfigError("give one of --steps, --positions and --find")
    if out is not None and not out.endswith((".parquet", ".npy")):
        raise ConfigError(f"--out {out}: expected a name that ends in .parquet or .npy")
    if out is not None and text:
        raise ConfigError("--out: a table has no text; leave --text out")
    prefixes = dict(moves_from(prefix or [], os.environ))
    whole = split or (None if find else "train")
    opened = trace(cache, whole, dataset=dataset, prefixes=prefixes)
    last = None if steps is None else _range("--steps", steps)[1]
    consumed = consumed_of(context, log, opened, last=last, begin_at=begin_at)
    dealt = None if deal is None else Deal.parse(deal)
    if dealt is not None and (consumed is None or opened.split != "train"):
        raise ConfigError(
            "--deal needs the steps of training: give --log FILE, or --global-batch-size"
        )
    runs, notes = _runs(opened, consumed, last, begin_at, dealt)
    wanted: list[Wanted] = []
    if find:
        places = [opened] if split else list(_all_splits(cache, opened, prefixes))
        wanted, more = _wanted(places, find)
        notes += more
        traced = [
            (run, run.find(sequences))
            for each, sequences in wanted
            for run in (runs if each is opened else [TracedRun(each, Sampling())])
        ]
    else:
        traced = [] if positions is None else _of_positions(opened, positions)
        if steps is not None:
            first, end = _range("--steps", steps)
            notes += require_steps(runs, first, end)
            traced = [
                (run, run.of_steps(run.steps.between(first, end))) for run in runs if run.steps
            ]
    names = known_columns([run for run, _ in traced], sources=sources)
    if out is None and not as_json:
        _print_rows(_rows(names, traced, text=text, tokenizer=tokenizer))
    else:
        with make_progress(log_format) as progress:
            progress.phase("tracing samples")
            counting = [(run, _counted(found, progress)) for run, found in traced]
            if out is not None:
                _write(out, names, counting, wanted, as_json=as_json)
            else:
                _print_lines(_rows(names, counting, text=text, tokenizer=tokenizer))
    of_sources = (note for run, _ in traced for note in run.trace.notes)
    for note in dict.fromkeys([*notes, *of_sources]):
        typer.echo(f"note: {note}", err=True)


def _wanted(splits: list[Trace], find: list[str]) -> tuple[list[Wanted], list[str]]:
    """Return what is searched for in each split, and what is not found there."""
    wanted, notes = [], []
    for each in splits:
        sequences, more = wanted_sequences(each, find)
        notes += more
        notes += [
            f"{pair.message}: --find looks in the corpora that it names"
            for pair in shared_corpora(each)
            if (pair.one in sequences) != (pair.other in sequences)
        ][:MAX_SAID]
        wanted.append((each, sequences))
    return wanted, notes


def _of_positions(opened: Trace, text: str) -> list[Traced]:
    """Return the samples of a range of positions."""
    own = range(*_range("--positions", text))
    if own.stop > len(opened):
        raise ConfigError(f"--positions {text}: the split has {len(opened)}, from 0 on")
    unordered = TracedRun(opened, Sampling())
    return [(unordered, unordered.of_positions(own))]


def _runs(
    opened: Trace, consumed: Consumed | None, last: int | None, begin_at: int, deal: Deal | None
) -> tuple[list[TracedRun], list[str]]:
    """Return the jobs of a run over a split, and what is not known of it; one without steps."""
    if consumed is None:
        return [TracedRun(opened, Sampling())], []
    runs, notes = runs_of(opened, consumed, last=last, begin_at=begin_at, deal=deal)
    return runs, [*consumed.summary(), *notes] if opened.split == "train" else notes


def _all_splits(cache: str, opened: Trace, prefixes: dict[str, str]) -> Iterator[Trace]:
    """Yield all splits of a cache, and all validation sets, the one that is open first."""
    yield opened
    for split in opened.cache.splits:
        for number in range(
            dataset_count(opened.cache, split) or 1
        ):  # Megatron's files say no more
            if (split, number) != (opened.split, 0):
                yield trace(cache, split, dataset=number, prefixes=prefixes)


def _counted(found: Iterator[StepSamples], progress: Progress) -> Iterator[StepSamples]:
    """Yield samples, and say how many there were."""
    for some in found:
        yield some
        progress.advance(len(some.traced.positions))


def _write(
    out: str,
    names: list[str],
    traced: list[Traced],
    wanted: list[Wanted],
    *,
    as_json: bool,
) -> None:
    """Write a table, or documents, and say how many rows each file has."""
    if out.endswith(".npy"):
        written = write_documents(out, _documents(traced, wanted), traced[0][0].trace)
    else:
        columns = (columns_of(some, run.trace, names) for run, found in traced for some in found)
        written = {out: write_parquet(out, names, columns)}
    if as_json:
        print_json([{"out": path, "rows": count} for path, count in written.items()])
        return
    for path, count in written.items():
        rows = counted(count, "document") if path.endswith(".npy") else counted(count, "row")
        typer.echo(f"{path}: {rows}")


def _documents(traced: list[Traced], wanted: list[Wanted]) -> dict[int, NDArray[np.int64]]:
    """Return the documents that were searched for, or those that samples have."""
    if not wanted:
        found = itertools.chain.from_iterable(own for _, own in traced)
        return documents_in(found, traced[0][0].trace)
    parts: dict[int, list[NDArray[np.int64]]] = {}
    for each, sequences in wanted:
        for corpus, own in sequences.items():
            parts.setdefault(corpus, []).append(each.documents(corpus, own))
    documents = {corpus: np.unique(np.concatenate(own)) for corpus, own in parts.items()}
    return {corpus: own for corpus, own in documents.items() if len(own)}


def _rows(
    names: list[str], traced: list[Traced], *, text: int, tokenizer: str | None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of the table; those of the first samples with their text."""
    for run, found in traced:
        for some in found:
            own = some.traced.first(text)
            texts = texts_of(run.trace, own, tokenizer) if text else []
            text -= len(own.positions)
            rows = rows_of(columns_of(some, run.trace, names))
            for row, words in itertools.zip_longest(rows, texts):
                yield row if words is None else row | {"text": words}


def _range(name: str, text: str) -> tuple[int, int]:
    """Return a range that was given as N or A:B."""
    found = RANGE.fullmatch(text)
    if found is None:
        raise ConfigError(f"{name} {text}: expected a number, or A:B")
    begin = int(found[1])
    end = int(found[2]) if found[2] else begin + 1
    if end <= begin:
        raise ConfigError(f"{name} {text}: has nothing in it: the second number is not included")
    return begin, end


def _print_lines(rows: Iterator[dict[str, Any]]) -> None:
    """Write each row as a line of JSON."""
    note_document()
    for row in rows:
        sys.stdout.write(json.dumps(row) + "\n")


def _print_rows(rows: Iterator[dict[str, Any]]) -> None:
    """Show the rows of the first samples, without columns of which nothing is known."""
    shown: list[dict[str, Any]] = []
    samples = 0
    for known in rows:
        row = dict.fromkeys(COLUMNS) | known
        same = shown and all(row[name] == shown[-1][name] for name in ("split", "step", "position"))
        if not same and samples == MAX_SHOWN:
            typer.echo(f"the first {samples} samples; --json and -o give all", err=True)
            break
        samples += not same
        shown.append(row)
    cells = [_cells(row) for row in shown]
    names = [name for name in SHOWN if any(row[name] is not None for row in cells)]
    print_records("", [{name: row[name] for name in names} for row in cells])
    for row in shown:
        if "text" in row:
            typer.echo(f"position {row['position']}, document {row['document']}:")
            typer.echo(f"  {row['text']!r}")
    typer.echo(counted(samples, "sample"))


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as a terminal shows it: several columns in one."""
    place = next((f"{name} {row[name]}" for name in ("line", "row") if row[name] is not None), "")
    notes = [word for word in ("rolled_back", "skipped") if row[word]]
    return row | {
        "tokens": f"{row['begin']}:{row['end']}",
        "source": None if row["source"] is None else f"{row['source']} {place}".strip(),
        "note": ", ".join(notes).replace("_", " ") or None,
    }
