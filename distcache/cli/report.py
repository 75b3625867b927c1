"""`distcache report`: what training sees of a cache, summed up."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Final

import typer

from distcache.cache.corpus_places import moves_from
from distcache.cli.cache import CacheArgument
from distcache.cli.common import JsonOption, LogOption, PrefixOption, ThreadsOption
from distcache.cli.show import make_progress, print_json, print_records
from distcache.errors import ConfigError
from distcache.ledger.report import make_report
from distcache.ledger.report_document import Report
from distcache.ledger.report_page import page_of
from distcache.ledger.trace import trace
from distcache.ranks.job_environment import threads_of, usable_cores
from distcache.storage.files import atomic_write, no_space_as_error
from distcache.storage.units import counted
from distcache.storage.url import path_only

WINDOW: Final = re.compile(r"(\d{1,15})(samples|steps)?")


def report_command(
    cache: CacheArgument,
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "train",
    dataset: Annotated[int, typer.Option(min=0, help="Number of the validation set.")] = 0,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Only the first samples, as many as were trained on.")
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(
            metavar="N[samples|steps]", help="Size of a window; by default there are 200."
        ),
    ] = None,
    global_batch_size: Annotated[
        int | None, typer.Option(min=1, help="Samples of a step, to compare steps.")
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

        distcache report pretrain.h5 --window 1000steps --global-batch-size 1024 --json
    """
    prefixes = dict(moves_from(prefix or [], os.environ))
    size = _window(window, global_batch_size)
    with make_progress(log_format) as progress:
        opened = trace(cache, split, dataset=dataset, prefixes=prefixes)
        progress.phase(f"summing up {cache}", samples or len(opened))
        report = make_report(
            opened,
            samples=samples,
            window=size,
            batch=global_batch_size,
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
    for warning in report.warnings:
        typer.echo(f"{warning.kind}: {warning.message}")
    if not report.warnings:
        typer.echo("nothing stands out")
    typer.echo(f"see {out}" if out else counted(report.windows.count, "window"))
