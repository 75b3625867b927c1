"""`distcache report`: what training sees of a cache, summed up."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Final

import typer

from distcache.cache.corpus_places import moves_from
from distcache.cache.deal import Deal
from distcache.cli.cache import TracedArgument
from distcache.cli.common import (
    DealOption,
    JsonOption,
    LogOption,
    PrefixOption,
    ThreadsOption,
)
from distcache.cli.consumed import TrainingLogOption, consumed_of
from distcache.cli.show import make_progress, print_json, print_records
from distcache.errors import ConfigError
from distcache.extras import needing
from distcache.ledger.report import make_report
from distcache.ledger.report_document import Report
from distcache.ledger.report_page import page_of
from distcache.ledger.steps import Sampling
from distcache.ledger.trace import Trace, trace
from distcache.ranks.job_environment import threads_of, usable_cores
from distcache.storage.files import atomic_write, is_plain_file, no_space_as_error
from distcache.storage.units import counted
from distcache.storage.url import path_only

WINDOW: Final = re.compile(r"(\d{1,15})(samples|steps)?")


def report_command(
    context: typer.Context,
    cache: TracedArgument,
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "train",
    dataset: Annotated[int, typer.Option(min=0, help="Number of the validation set.")] = 0,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Samples that training has consumed; by default all.")
    ] = None,
    log: TrainingLogOption = None,
    window: Annotated[
        str | None,
        typer.Option(
            metavar="N[samples|steps]", help="Size of a window; by default there are 200."
        ),
    ] = None,
    global_batch_size: Annotated[
        int | None, typer.Option(min=1, help="Samples of a step, to compare steps.")
    ] = None,
    deal: DealOption = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Size of the model, with --deal: 1B, 8B (the default), 70B, 405B or 30B-A3B; or "
            "the length in tokens at which attention costs as much as everything else.",
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", metavar="FILE.html", callback=path_only, help="Write a page."),
    ] = None,
    threads: ThreadsOption = 0,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
    log_format: LogOption = "auto",
) -> None:
    """Sum up what training sees: shares, passes, repeats, documents cut, and faults.

    The page needs no network: one file, with its figures. JSON has the same numbers.

    Examples
    --------
        distcache report pretrain.h5 -o report.html

        distcache report pretrain.h5 --log train.log

        distcache report pretrain.h5 --window 1000steps --global-batch-size 1024 --json

        distcache report pretrain.h5 --deal 1024x64x1 --model 8B
    """
    dealt = None if deal is None else Deal.parse(deal)
    if dealt is None and model is not None:
        raise ConfigError("--model needs --deal BATCHxRANKSxMICRO")
    if context.args and not log:
        raise ConfigError(f"unknown option or word: {' '.join(context.args)}")
    prefixes = dict(moves_from(prefix or [], os.environ))
    size = _window(window, global_batch_size)
    if out is not None:
        _require_page(Path(out))
    with make_progress(log_format) as progress:
        opened = trace(cache, split, dataset=dataset, prefixes=prefixes)
        if log:
            samples = _of_logs(context, log, opened, samples)
        progress.phase(f"summing up {cache}", samples or len(opened))
        report = make_report(
            opened,
            samples=samples,
            window=size,
            batch=global_batch_size,
            deal=dealt,
            model=model or "8B",
            threads=threads or threads_of(usable_cores(), 1),
            advance=progress.advance,
        )
    if out is not None:
        with no_space_as_error(out), atomic_write(Path(out)) as stream:
            stream.write(page_of(report).encode())
    if as_json:
        print_json(report)
    else:
        _show(report, out)


def _require_page(out: Path) -> None:
    """Refuse a page that cannot be written, before the work."""
    if not out.parent.is_dir() or out.is_dir():
        why = "is a directory" if out.is_dir() else f"there is no directory {out.parent}"
        raise ConfigError(f"--out {out}: {why}; give the name of a file")
    if out.suffix not in (".html", ".htm") or (os.path.lexists(out) and not is_plain_file(out)):
        raise ConfigError(f"--out {out}: expected the name of an .html file, which is replaced")
    with needing("a page"):
        import matplotlib as mpl  # noqa: F401, PLC0415  of an extra


def _of_logs(
    context: typer.Context, logs: list[Path], opened: Trace, samples: int | None
) -> int | None:
    """Return how many samples logs say that training has consumed."""
    if samples is not None or opened.split != "train":
        raise ConfigError("--log: says the samples of training: leave --samples and --split out")
    consumed = consumed_of(context, logs, opened)
    assert consumed is not None, "there are logs"
    notes = consumed.summary()
    skipped = consumed.samples - sum(end - begin for begin, end in consumed.learned())
    if skipped:
        notes.append(
            f"{skipped:,} samples that were skipped are counted as if they were trained on"
        )
    if any(Sampling.of_run(run, "train").kind != "single" for run in consumed.options):
        notes.append(
            "training dealt the samples in another order than theirs: the report is of the first "
            f"{consumed.samples:,} of the split"
        )
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    return consumed.samples


def _window(text: str | None, batch: int | None) -> int | None:
    """Return the samples of a window that is given as N, Nsamples or Nsteps."""
    if text is None:
        return None
    found = WINDOW.fullmatch(text)
    if found is None or not int(found[1]):
        raise ConfigError(f"--window {text}: expected a number of samples, or Nsteps")
    if found[2] == "steps" and batch is None:
        raise ConfigError(f"--window {text}: give --global-batch-size, too")
    return int(found[1]) * (batch or 1 if found[2] == "steps" else 1)


def _show(report: Report, out: str | None) -> None:
    print_records(
        f"{report.cache}: {report.split}, {report.samples:,} samples of "
        f"{report.sequence_length:,} tokens",
        [
            {
                "corpus": one.corpus,
                "weight": "" if one.weight is None else f"{one.weight:.3%}",
                "share": f"{one.share:.3%}",
                "tokens": one.tokens,
                "passes": f"{one.passes:,.3f}",
                "never seen": f"{one.tokens_never / max(one.tokens, 1):.2%}",
            }
            for one in report.corpora
        ],
    )
    if (waits := report.waits) is not None:
        typer.echo(
            f"ranks wait {waits.in_order:.1%} of a step, {waits.dealt:.1%} with a deal; "
            f"{waits.in_order_by_micro_batch:.1%} and {waits.dealt_by_micro_batch:.1%} if they "
            "meet in each micro batch"
        )
    for warning in report.warnings:
        typer.echo(f"{warning.kind}: {warning.message}")
    if not report.warnings:
        typer.echo("nothing stands out")
    typer.echo(f"see {out}" if out else counted(report.windows.count, "window"))
