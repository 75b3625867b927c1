"""`distcache trace`: which documents steps see, and which steps see a document."""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
import typer
from numpy.typing import NDArray

from distcache.cache.corpus_places import moves_from
from distcache.cache.split_members import dataset_count
from distcache.cli.cache import CacheArgument
from distcache.cli.common import JsonOption, LogOption, PrefixOption, option_names
from distcache.cli.show import LogFormat, make_progress, print_json, print_table
from distcache.errors import ConfigError
from distcache.ledger.asked_run import runs_of, steps_between
from distcache.ledger.cache_difference import difference
from distcache.ledger.trace import Trace, trace
from distcache.ledger.trace_json import by_step, samples_with_text, write_json
from distcache.ledger.trace_table import (
    Columns,
    Words,
    columns_of,
    documents_in,
    write_documents,
    write_parquet,
)
from distcache.ledger.traced_run import DealtSamples
from distcache.ledger.wanted import wanted_sequences
from distcache.megatron.run_options import run_of_command
from distcache.megatron.training_log import LoggedJob, parse_log
from distcache.ranks.progress import Progress
from distcache.storage.units import counted
from distcache.storage.url import path_only

RANGE: Final = re.compile(r"(\d{1,18})(?::(\d{1,18}))?")
MOST_SHOWN: Final = 32  # samples, on a terminal
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
    cache: CacheArgument,
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
    diff: Annotated[
        str | None,
        typer.Option(metavar="CACHE", help="Compare the samples with those of another cache."),
    ] = None,
    log: Annotated[
        list[Path] | None,
        typer.Option(help="Training log; those of several jobs in their order.", exists=True),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(help="train, valid or test; by default train, and all of them with --find."),
    ] = None,
    dataset: Annotated[int, typer.Option(min=0, help="Number of the validation set.")] = 0,
    begin_at: Annotated[
        int,
        typer.Option(min=0, help="Samples that the run consumed before the first of this cache."),
    ] = 0,
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

        distcache trace pretrain.h5 --diff pretrain-2.h5
    """
    asked = [steps is not None, positions is not None, bool(find), diff is not None]
    if sum(asked) != 1:
        raise ConfigError("give one of --steps, --positions, --find and --diff")
    _require_together(out, diff, text)
    prefixes = dict(moves_from(prefix or [], os.environ))
    opened = trace(cache, split or "train", dataset=dataset, prefixes=prefixes)
    if diff is not None:
        other = trace(diff, split or "train", dataset=dataset, prefixes=prefixes)
        _show_difference(opened, other, as_json=as_json, log_format=log_format)
        return
    question = _Question(cache, opened, split, steps, positions, find or [], prefixes)
    answer = _answer(question, log or [], context, begin_at)
    if out is not None:
        written = _write(out, answer, bool(find), sources=sources, log_format=log_format)
        _say_written(written, as_json=as_json)
    else:
        samples = _samples(answer, bool(find), sources=sources, text=text, tokenizer=tokenizer)
        if as_json:
            head = {"cache": cache, "key": opened.cache.key, "split": split or "train"}
            name, entries = ("steps", by_step(samples)) if steps else ("samples", samples)
            write_json(sys.stdout.write, head, name, entries, answer.all_notes)
        else:
            _print_samples(samples)
    for note in answer.all_notes():
        typer.echo(f"note: {note}", err=True)


class _Question(NamedTuple):
    """What is asked of a cache."""

    cache: str
    opened: Trace
    split: str | None
    steps: str | None
    positions: str | None
    find: list[str]
    prefixes: dict[str, str]


class _Traced(NamedTuple):
    """Samples that are asked for, and their split."""

    trace: Trace
    found: Iterator[DealtSamples]


class _Answer(NamedTuple):
    """Samples of splits and jobs; and the sequences that were searched for."""

    traced: list[_Traced]
    wanted: list[tuple[Trace, dict[int, NDArray[np.int64]]]]
    notes: list[str]

    def all_notes(self) -> list[str]:
        """Return what is not known, each once."""
        of_sources = (note for one in self.traced for note in one.trace.notes)
        return list(dict.fromkeys([*self.notes, *of_sources]))


def _answer(
    question: _Question, logs: Sequence[Path], context: typer.Context, begin_at: int
) -> _Answer:
    """Find out which samples are asked for."""
    opened, steps = question.opened, question.steps
    jobs = list(itertools.chain.from_iterable(map(_read_log, logs)))
    if logs and not jobs:
        raise ConfigError(f"{logs[0]}: has no line of an iteration, as Megatron writes them")
    options = None
    if context.args:
        length = opened.cache.sequence_length
        options = run_of_command(context.args, length, option_names(context))
    last = None if steps is None else _range("--steps", steps)[1]
    runs, notes = runs_of(opened, jobs, options, last=last, begin_at=begin_at)
    if question.positions is not None:
        begin, end = _range("--positions", question.positions)
        if end > len(opened):
            raise ConfigError(
                f"--positions {question.positions}: the split has {len(opened)}, from 0 on"
            )
        return _Answer([_Traced(opened, runs[0].run.of_positions(range(begin, end)))], [], notes)
    if steps is not None:
        runs, more = steps_between(runs, *_range("--steps", steps))
        traced = [_Traced(opened, run.of_steps(own)) for run, own in runs if own is not None]
        return _Answer(traced, [], notes + more)
    answer = _Answer([], [], notes)
    for each in [opened] if question.split else _all_splits(question):
        sequences, more = wanted_sequences(each, question.find)
        answer.notes.extend(more)
        answer.wanted.append((each, sequences))
        own_runs = runs if each is opened else runs_of(each)[0]
        answer.traced.extend(_Traced(each, run.find(sequences, own)) for run, own in own_runs)
    return answer


def _require_together(out: str | None, diff: str | None, text: int) -> None:
    """Refuse options that say nothing together."""
    if out is not None and not out.endswith((".parquet", ".npy")):
        raise ConfigError(f"--out {out}: expected a name that ends in .parquet or .npy")
    if out is not None and (diff is not None or text):
        raise ConfigError("--out: tables have neither differences nor text; leave it out")


def _all_splits(question: _Question) -> list[Trace]:
    """Return all splits of a cache, and all validation sets, the one that is open first."""
    cache = question.opened.cache
    others = [
        (split, number)
        for split in cache.splits
        for number in range(dataset_count(cache, split) or 1)  # Megatron's own files say no more
        if (split, number) != ("train", 0)
    ]
    return [
        question.opened,
        *(trace(question.cache, s, dataset=n, prefixes=question.prefixes) for s, n in others),
    ]


def _write(
    out: str, answer: _Answer, with_split: bool, *, sources: bool, log_format: LogFormat
) -> dict[str, int]:
    """Write a table, or documents; return the rows of each file."""
    if out.endswith(".npy"):
        return write_documents(out, _documents(answer), answer.traced[0].trace)
    with make_progress(log_format) as progress:
        progress.phase("tracing samples")
        return {out: write_parquet(out, _columns(answer, with_split, sources, progress))}


def _documents(answer: _Answer) -> dict[int, NDArray[np.int64]]:
    """Return the documents that were searched for, or those that samples have."""
    if not answer.wanted:
        found = (one.found for one in answer.traced)
        return documents_in(itertools.chain.from_iterable(found), answer.traced[0].trace)
    parts: dict[int, list[NDArray[np.int64]]] = {}
    for each, sequences in answer.wanted:
        for corpus, own in sequences.items():
            parts.setdefault(corpus, []).append(each.documents(corpus, own))
    documents = {corpus: np.unique(np.concatenate(own)) for corpus, own in parts.items()}
    return {corpus: own for corpus, own in documents.items() if len(own)}


def _columns(
    answer: _Answer, with_split: bool, sources: bool, progress: Progress
) -> Iterator[Columns]:
    """Yield the columns of samples; where there are none, those of no sample."""
    anything = False
    traced = answer.traced
    for one in traced:
        for some in one.found:
            anything = True
            columns = columns_of(some, one.trace, sources=sources)
            if with_split:
                codes = np.zeros(len(some.traced.sequences), np.int32)
                columns = {"split": Words(codes, [one.trace.split.split]), **columns}
            yield columns
            progress.advance(len(some.traced.positions))
    if not anything:
        empty = traced[0].trace.samples([])
        yield columns_of(
            DealtSamples(empty, None, np.empty(0, np.int64), None), traced[0].trace, sources=sources
        )


def _samples(
    answer: _Answer,
    with_split: bool,
    *,
    sources: bool,
    text: int,
    tokenizer: str | None,
) -> Iterator[dict[str, Any]]:
    """Yield samples as JSON objects, with the text of the first ones."""
    for one in answer.traced:
        for sample in samples_with_text(
            one.trace, one.found, sources=sources, text=text, tokenizer=tokenizer
        ):
            text -= any("text" in part for part in sample["parts"])
            yield ({"split": one.trace.split.split} if with_split else {}) | sample


def _say_written(written: dict[str, int], *, as_json: bool) -> None:
    if as_json:
        print_json([{"out": path, "rows": count} for path, count in written.items()])
        return
    for path, count in written.items():
        rows = counted(count, "document") if path.endswith(".npy") else counted(count, "row")
        typer.echo(f"{path}: {rows}")


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


def _read_log(path: Path) -> list[LoggedJob]:
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            return parse_log(str(path), lines)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error


def _print_samples(samples: Iterator[dict[str, Any]]) -> None:
    """Show the first samples, a line for each part."""
    shown = list(itertools.islice(samples, MOST_SHOWN))
    rows = [_row(sample, part) for sample in shown for part in sample["parts"]]
    names = [name for name in SHOWN if any(name in row for row in rows)]
    print_table("", names, [[row.get(name) for name in names] for row in rows])
    for sample in shown:
        for part in sample["parts"]:
            if "text" in part:
                typer.echo(f"position {sample['position']}, document {part['document']}:")
                typer.echo(f"  {part['text']!r}")
    more = next(samples, None) is not None
    said = f"the first {len(shown)} samples; --json and -o give all" if more else ""
    typer.echo(said or counted(len(shown), "sample"))


def _row(sample: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    tokens = f"{part['begin']}:{part['end']}"
    place = (
        f"line {part['line']}" if "line" in part else f"row {part['row']}" if "row" in part else ""
    )
    source = f"{part['source']} {place}".strip() if "source" in part else None
    row = {name: value for name, value in (sample | part).items() if name in SHOWN}
    row |= {"tokens": tokens} | ({} if source is None else {"source": source})
    if sample.get("rolled_back"):
        row["note"] = "rolled back"
    if sample.get("skipped"):
        row["note"] = "skipped"
    return row


def _show_difference(one: Trace, other: Trace, *, as_json: bool, log_format: LogFormat) -> None:
    with make_progress(log_format) as progress:
        progress.phase("comparing samples", min(len(one), len(other)))
        found = difference(one, other, progress.advance)
    if as_json:
        print_json(found)
        return
    if found.size != found.size_of_other:
        typer.echo(f"{found.size:,} and {found.size_of_other:,} samples")
    if found.first is None:
        typer.echo("the samples that both have are equal")
        return
    typer.echo(
        f"{found.differing:,} samples differ, {found.share:.2%} of those that both have; the first "
        f"at position {found.first:,}"
    )
    print_table(
        "Tokens of the samples that differ",
        ["corpus", "tokens", "tokens of the other"],
        [[one.corpus, one.tokens, one.tokens_of_other] for one in found.exposures],
    )
