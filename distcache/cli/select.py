"""`distcache select`."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from distcache.cli.common import JsonOption, LogOption, PathOutOption, path_only
from distcache.cli.corpora import bare_prefix, write_corpus
from distcache.corpus.receipt import Receipt
from distcache.edit.select import SelectOptions, select
from distcache.edit.selection import Selection
from distcache.errors import ConfigError
from distcache.ranks.communicator import Communicator
from distcache.ranks.progress import Progress
from distcache.storage.units import parse_tokens

END = 1 << 62  # of documents, if none is given


def select_command(
    corpus: Annotated[
        str, typer.Argument(callback=path_only, help="A corpus: its path without .idx or .bin.")
    ],
    out: PathOutOption,
    rows: Annotated[
        str | None,
        typer.Option(
            "--row-numbers",
            metavar="FILE",
            help="File with the numbers of the documents, text or .npy.",
        ),
    ] = None,
    drop: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Not the documents of these numbers, text or .npy."),
    ] = None,
    documents: Annotated[
        str | None, typer.Option(metavar="A:B", help="Documents from A to below B, from 0.")
    ] = None,
    min_length: Annotated[
        int | None, typer.Option(min=0, help="Least tokens of a document.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(min=0, help="Most tokens of a document.")
    ] = None,
    sample: Annotated[
        float | None, typer.Option(help="Each document with this probability, for example 0.1.")
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="Documents at random until they have so many tokens, such as 1e9."
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**64 - 1, help="Seed of --sample and --tokens.")
    ] = 0,
    split_at: Annotated[
        int | None,
        typer.Option(
            min=1, max=2**31 - 1, help="Cut sequences into sequences of at most so many tokens."
        ),
    ] = None,
    absolute: Annotated[
        bool, typer.Option("--absolute", help="Link the .bin by its absolute path.")
    ] = False,
    log_format: LogOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Select documents of a corpus as a view: a new .idx, and a link to the same .bin.

    A document is kept if every condition that is given holds. Runs alone or under mpiexec or srun;
    the documents are split over the ranks.

    Examples
    --------
        distcache select data/web -o data/web-tenth --sample 0.1

        distcache select data/web -o data/web-1b --tokens 1e9 --seed 7

        distcache select data/web -o data/web-clean --drop duplicates.npy --min-length 64
    """
    options = SelectOptions(
        Selection(
            documents=_parse_range(documents),
            min_length=min_length,
            max_length=max_length,
            sample=sample,
            tokens=None if tokens is None else parse_tokens(tokens),
            seed=seed,
            split_at=split_at,
        ),
        rows,
        drop,
        absolute,
    )

    def make(communicator: Communicator, threads: int, progress: Progress) -> Receipt:
        return select(communicator, bare_prefix(corpus), out, options, threads, progress)

    write_corpus(make, out, log_format, as_json=as_json)


def _parse_range(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d{0,18}):(\d{0,18})", text.strip())
    if found is None:
        raise ConfigError(f"--documents {text!r}: expected A:B, for example 0:1000")
    return int(found[1] or 0), int(found[2] or END)
