"""`distcache index mds` and `mix`: MDS data sets as corpora."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from distcache.builder.configuration import read_document
from distcache.cli.common import (
    JsonOption,
    LogOption,
    OutOption,
    ThreadsOption,
    interrupt_on_signals,
)
from distcache.cli.options import with_options
from distcache.cli.show import make_progress, print_result
from distcache.edit.index_mds import index_mds
from distcache.edit.mds_scan import MdsOptions, TokenDtype
from distcache.edit.mirror import mirror, mirrored
from distcache.edit.mix import MixOptions, mix
from distcache.edit.mix_recipe import Recipe, recipe_from
from distcache.errors import ConfigError
from distcache.ranks.agreement import on_rank_0
from distcache.ranks.connect import connect
from distcache.ranks.job_environment import share_of_cores
from distcache.storage.url import is_url, path_only

index_app = typer.Typer(
    name="index",
    help="Use data in place: MDS shards as corpora, without conversion.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


ColumnOption = Annotated[
    str | None, typer.Option(help="The column of tokens; without --rows, tokens.")
]


@index_app.callback()
def _group() -> None:
    """Use data in place: MDS shards as corpora, without conversion."""


@index_app.command("mds")
@with_options
def mds_command(
    directories: Annotated[
        list[str],
        typer.Argument(
            metavar="DIR...",
            help="MDS data sets: with an index.json each; or URLs, whose shards are brought to "
            "OUT.mds, where they stay.",
        ),
    ],
    out: OutOption,
    options: MdsOptions,
    column: ColumnOption = None,
    rows: Annotated[
        bool, typer.Option("--rows", help="Index whole records, of any columns, not tokens.")
    ] = False,
    threads: ThreadsOption = 0,
    log_format: LogOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Index MDS shards as a corpus: OUT.idx and OUT.shards. Nothing is converted.

    Nothing is written beside shards on a filesystem. Those of a URL are brought to OUT.mds, where
    training and localizations read them.

    Runs alone or under mpiexec or srun; ranks divide the shards. A killed run continues.

    Examples
    --------
        distcache index mds /data/web-mds --subdirectory train -o corpora/web

        mpiexec -n 8 distcache index mds /data/c4/0 /data/c4/1 --dtype int64 -o corpora/c4

        distcache index mds /data/speech --rows -o corpora/speech

        distcache index mds s3://lake/c4-mds --subdirectory train -o corpora/c4
    """
    if rows and column:
        raise ConfigError("--rows indexes whole records: leave out --column, or --rows")
    if rows and (options.dtype or options.vocabulary):
        raise ConfigError("--rows indexes whole records: leave out --dtype and --vocab-size")
    options = msgspec.structs.replace(options, column="" if rows else column or "tokens")
    communicator = connect()
    interrupt_on_signals()
    with make_progress(log_format, communicator.rank) as progress:
        homes = [
            f"{out}.mds/{number}" if is_url(word) else word
            for number, word in enumerate(directories)
        ]
        pairs = zip(directories, homes, strict=True)
        sets = [mirrored(word, options.split, home) for word, home in pairs if is_url(word)]
        mirror(communicator, sets, progress)
        receipt = index_mds(
            communicator,
            homes,
            out,
            options,
            threads or share_of_cores(communicator),
            progress,
        )
    left_out = sum(entry.skipped for entry in receipt.inputs)
    if left_out and communicator.rank == 0 and not as_json:
        typer.echo(f"{left_out} records were left out: see {out}.receipt.json", err=True)
    print_result(communicator.rank, receipt, [out], as_json=as_json)


@with_options
def mix_command(
    recipe: Annotated[str, typer.Argument(help="A list of MDS data sets, as YAML or JSON.")],
    out: Annotated[
        str,
        typer.Option(
            "--out", "-o", callback=path_only, help="Directory of the corpora, and of blend.json."
        ),
    ],
    options: MixOptions,
    rows: Annotated[
        bool, typer.Option("--rows", help="Whole records, of any columns; else tokens.")
    ] = False,
    column: ColumnOption = None,
    dtype: TokenDtype = None,
    threads: ThreadsOption = 0,
    log_format: LogOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Index the MDS data sets of a list that are not, and write the blend of them.

    The list has `train` and `valid`: data sets with `path`, and perhaps `name` and `split`, and
    `choose`, `proportion` or `repeat` as streams of mosaicml-streaming have them. Each of `valid`
    is a separate validation set. Runs alone or under mpiexec or srun.

    Examples
    --------
        distcache mix mix.yaml --rows -o corpora/mix

        distcache build corpora/mix/blend.json -o /shared/caches --name mix
    """
    if rows and (column or dtype or options.sequence_length):
        raise ConfigError(
            "--rows mixes whole records: leave out --column, --dtype and --sequence-length"
        )
    sets = MdsOptions(column="" if rows else column or "tokens", dtype=dtype)
    options = msgspec.structs.replace(options, mds=sets)
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
