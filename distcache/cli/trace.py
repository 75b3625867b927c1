"""`distcache trace`: which documents steps see, and which steps see a document."""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer

from distcache.cache.corpus_places import moves_from
from distcache.cli.cache import CacheArgument
from distcache.cli.common import JsonOption, LogOption, PrefixOption
from distcache.cli.show import LogFormat, make_progress, print_json, print_table
from distcache.errors import ConfigError
from distcache.ledger.cache_difference import difference
from distcache.ledger.sample_text import texts_of
from distcache.ledger.steps import (
    Sampling,
    Steps,
    evaluations_within,
    logged_steps,
    steps_within,
    training_steps,
)
from distcache.ledger.trace import Trace, trace
from distcache.ledger.trace_table import (
    OF_STEP,
    Columns,
    columns_of,
    documents_of_table,
    write_documents,
    write_parquet,
)
from distcache.ledger.traced_run import DealtSamples, TracedRun
from distcache.ledger.wanted import wanted_sequences
from distcache.megatron.run_options import run_of_command, run_of_log
from distcache.megatron.training_log import LoggedJob, parse_log
from distcache.storage.units import counted
from distcache.storage.url import path_only

RANGE: Final = re.compile(r"(\d{1,18})(?::(\d{1,18}))?")
MOST_SHOWN: Final = 32  # samples, on a terminal
NO_STEPS: Final = (
    "--steps: which samples a step takes follows from --log FILE, or from options: "
    "--global-batch-size N, or a whole training command after --"
)

SHOWN: Final = (
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
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "train",
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
    prefixes = dict(moves_from(prefix or [], os.environ))
    opened = trace(cache, split, dataset=dataset, prefixes=prefixes)
    if diff is not None:
        other = trace(diff, split, dataset=dataset, prefixes=prefixes)
        _show_difference(opened, other, as_json=as_json, log_format=log_format)
        return
    notes: list[str] = []
    last = None if steps is None else _range("--steps", steps)[1]
    run, known = _run(opened, split, log or [], context.args, last, begin_at, notes)
    total = 0
    if positions is not None:
        found = run.of_positions(np.arange(*_range("--positions", positions)))
    elif find:
        found = run.find(wanted_sequences(opened, find), known)
    else:
        if known is None:
            raise ConfigError(NO_STEPS)
        known = known.between(*_range("--steps", steps or ""))
        total = int((known.ends - known.begins).sum())
        found = run.of_steps(known)
    if out is not None:
        _write(out, opened, found, total, sources=sources, as_json=as_json, log_format=log_format)
    elif as_json:
        _print_json(opened, split, found, sources=sources, text=text, tokenizer=tokenizer)
    else:
        _print_samples(opened, found, sources=sources, text=text, tokenizer=tokenizer)
    for note in dict.fromkeys([*notes, *opened.notes]):
        typer.echo(f"note: {note}", err=True)


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


def _run(
    opened: Trace,
    split: str,
    logs: Sequence[Path],
    words: Sequence[str],
    last: int | None,
    begin_at: int,
    notes: list[str],
) -> tuple[TracedRun, Steps | None]:
    """Return the run, and its steps as far as a log or options say them."""
    jobs = list(itertools.chain.from_iterable(map(_read_log, logs)))
    if logs and not jobs:
        raise ConfigError(f"{logs[0]}: has no line of an iteration, as Megatron writes them")
    options = run_of_log(jobs[-1]) if jobs else None
    if words:
        options = run_of_command(words, opened.cache.sequence_length)
    if options is None:
        return TracedRun(opened, Sampling()), None
    sampling = Sampling.of_run(options, split)
    run = TracedRun(opened, sampling)
    if split != "train":
        steps = evaluations_within(options.training, len(opened), sampling, last)
    elif jobs:
        steps, found = logged_steps(jobs)
        notes += found
    elif last is not None:
        steps = training_steps(options.training, max(last - 1, 0), options.iterations_to_skip)
    else:
        steps = steps_within(options, len(opened) + begin_at)
    within = steps.within(begin_at, None if run.order.repeats else len(opened))
    if len(within.numbers) < len(steps.numbers):
        beyond = int(np.count_nonzero(steps.ends - begin_at > len(opened)))
        if beyond and not run.order.repeats:
            notes.append(
                f"{counted(beyond, 'step')} took samples beyond the {len(opened)} that the split "
                "has: the log, or the options, are those of another cache; see --begin-at"
            )
    return run, within


def _read_log(path: Path) -> list[LoggedJob]:
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            return parse_log(str(path), lines)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error


def _write(
    out: str,
    opened: Trace,
    found: Iterator[DealtSamples],
    total: int,
    *,
    sources: bool,
    as_json: bool,
    log_format: LogFormat,
) -> None:
    with make_progress(log_format) as progress:
        progress.phase("tracing samples", total)

        def columns() -> Iterator[Columns]:
            for some in found:
                yield columns_of(some, opened, sources=sources)
                progress.advance(len(some.traced.positions))

        documents = out.endswith(".npy")
        rows = write_documents(out, found, opened) if documents else write_parquet(out, columns())
    if as_json:
        print_json({"out": out, "rows": rows})
        return
    said = "documents" if documents else "rows, each a part of a document in a sample"
    typer.echo(f"{out}: {rows:,} {said}")


def _documents(
    opened: Trace, found: Iterator[DealtSamples], sources: bool, text: int, tokenizer: str | None
) -> Iterator[dict[str, Any]]:
    """Yield the samples, with the text of the first ones."""
    for some in found:
        columns = columns_of(some, opened, sources=sources)
        texts = texts_of(opened, some.traced.first(text), tokenizer) if text else []
        text -= len(texts)
        for number, sample in enumerate(documents_of_table(columns)):
            if number < len(texts):
                for part, words in zip(sample["parts"], texts[number], strict=True):
                    part["text"] = words
            yield sample


def _print_json(
    opened: Trace,
    split: str,
    found: Iterator[DealtSamples],
    *,
    sources: bool,
    text: int,
    tokenizer: str | None,
) -> None:
    """Write samples as JSON, a step at a time, so that memory holds no more."""
    head = {"cache": str(opened.cache.path), "key": opened.cache.key, "split": split}
    samples = _documents(opened, found, sources, text, tokenizer)
    first = next(samples, None)
    samples = itertools.chain([] if first is None else [first], samples)
    entries: Iterator[dict[str, Any]] = samples
    name = "samples"
    if first is not None and "step" in first:
        name, entries = "steps", _by_step(samples)
    write = sys.stdout.write
    write(json.dumps(head, indent=1)[:-2] + f',\n "{name}": [')
    for number, entry in enumerate(entries):
        write((",\n  " if number else "\n  ") + json.dumps(entry))
    write("\n ]\n}\n")


def _by_step(samples: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield steps with their samples."""
    for _, group in itertools.groupby(samples, key=lambda one: (one["step"], one.get("job"))):
        own = list(group)
        entry = {"step": 0, "skipped": False, "rolled_back": False}
        entry |= {name: own[0][name] for name in OF_STEP if name in own[0]}
        for sample in own:
            for name in entry:
                sample.pop(name, None)
        yield entry | {"samples": own}


def _print_samples(
    opened: Trace,
    found: Iterator[DealtSamples],
    *,
    sources: bool,
    text: int,
    tokenizer: str | None,
) -> None:
    """Show the first samples, a line for each part."""
    samples = _documents(opened, found, sources, text, tokenizer)
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
