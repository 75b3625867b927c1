"""`distcache mix`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from distcache.builder.configuration import read_document
from distcache.cli.common import (
    JsonOption,
    LogOption,
    ThreadsOption,
    interrupt_on_signals,
    path_only,
)
from distcache.cli.show import make_progress, print_result
from distcache.edit.mds_scan import MdsOptions
from distcache.edit.mix import MixOptions, mix
from distcache.edit.mix_recipe import MOST_SAMPLES, Recipe, recipe_from
from distcache.errors import ConfigError
from distcache.ranks.agreement import on_rank_0
from distcache.ranks.connect import connect
from distcache.ranks.cores import share_of_cores


def mix_command(
    recipe: Annotated[str, typer.Argument(help="A list of MDS data sets, as YAML or JSON.")],
    out: Annotated[
        str,
        typer.Option(
            "--out", "-o", callback=path_only, help="Directory of the corpora, and of blend.json."
        ),
    ],
    rows: Annotated[
        bool, typer.Option("--rows", help="Whole samples, of any columns; else tokens.")
    ] = False,
    column: Annotated[
        str | None, typer.Option(help="The column of tokens; without --rows, tokens.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(metavar="TYPE", help="Type of tokens in a column of bytes.")
    ] = None,
    sequence_length: Annotated[
        int | None,
        typer.Option(min=2, max=2**31 - 2, help="Tokens of a sample; needed without --rows."),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST_SAMPLES, help="Samples of training; by default those of one pass."
        ),
    ] = None,
    validation: Annotated[
        int, typer.Option(min=1, help="Samples of each validation set, at most.")
    ] = 512,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of the blend.")] = 1234,
    order: Annotated[
        Literal["passes", "windows"],
        typer.Option(help="Order of samples: over all, or in windows."),
    ] = "passes",
    headers_only: Annotated[
        bool, typer.Option("--headers-only", help="Read only headers: no digests.")
    ] = False,
    threads: ThreadsOption = 0,
    log_format: LogOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Index the MDS data sets of a list that are not, and write the blend of them.

    The list has `train` and `valid`: data sets with `path`, and perhaps `name` and `split`, and
    `choose`, `proportion` or `repeat` as streams of mosaicml-streaming have them. Each of `valid`
    is a validation set of its own. Runs alone or under mpiexec or srun.

    Examples
    --------
        distcache mix mix.yaml --rows -o corpora/mix

        distcache build corpora/mix/blend.json -o /shared/caches --name mix
    """
    if not rows and sequence_length is None:
        raise ConfigError("give --sequence-length for tokens, or --rows")
    if rows and (column or dtype or sequence_length):
        raise ConfigError(
            "--rows mixes whole samples: leave out --column, --dtype and --sequence-length"
        )
    options = MixOptions(
        mds=MdsOptions(
            column="" if rows else column or "tokens", dtype=dtype, headers_only=headers_only
        ),
        sequence_length=1 if rows else sequence_length or 1,
        samples=samples,
        validation=validation,
        seed=seed,
        order=order,
    )
    communicator = connect()
    interrupt_on_signals()
    found = on_rank_0(
        communicator, lambda: recipe_from(read_document(recipe)), Recipe, "reading the list"
    )
    with make_progress(log_format, communicator.rank) as progress:
        done = mix(
            communicator, found, out, options, threads or share_of_cores(communicator), progress
        )
    print_result(communicator.rank, done, [done.path], as_json=as_json)
