"""`distcache select`."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from distcache.cli.common import JsonOption, LogOption, OutOption
from distcache.cli.corpora import bare_prefix, write_corpus
from distcache.cli.options import with_options
from distcache.corpus.receipt import Receipt
from distcache.edit.select import SelectOptions, select
from distcache.edit.selection import Selection
from distcache.ranks.communicator import Communicator
from distcache.ranks.progress import Progress
from distcache.storage.url import path_only


@with_options
def select_command(
    corpus: Annotated[
        str, typer.Argument(callback=path_only, help="A corpus: its path without .idx or .bin.")
    ],
    out: OutOption,
    selection: Selection,
    options: SelectOptions,
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
    options = msgspec.structs.replace(options, selection=selection)

    def make(communicator: Communicator, threads: int, progress: Progress) -> Receipt:
        return select(communicator, bare_prefix(corpus), out, options, threads, progress)

    write_corpus(make, out, log_format, as_json=as_json)
