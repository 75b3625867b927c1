"""`distcache localize`, and `distcache local ls`, `verify` and `gc`."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from distcache.builder.configuration import naming_from
from distcache.cache.corpus_places import moves_from
from distcache.cli.common import (
    FimOption,
    JsonOption,
    LogOption,
    PrefixOption,
    TokenizerOption,
    interrupt_on_signals,
)
from distcache.cli.options import with_options
from distcache.cli.show import make_progress, print_json, print_records
from distcache.errors import CacheCorrupt, ConfigError, NotReady
from distcache.megatron.export import settings_text
from distcache.node.ahead.client import fetcher_status
from distcache.node.localize import localize
from distcache.node.records import Localized, LocalizeOptions, NodeReport
from distcache.node.store import Store, required_directory
from distcache.node.upkeep import collect, list_store, open_store, verify_store
from distcache.ranks.communicator import Communicator, SerialCommunicator
from distcache.ranks.connect import connect
from distcache.ranks.job_environment import is_first_task
from distcache.storage.units import counted, parse_size, size_text
from distcache.storage.url import path_only

MAX_ROWS: Final = 16  # of a table without --verbose
StoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store", callback=path_only, help="The store; by default where `localize` puts it."
    ),
]

local_app = typer.Typer(
    name="local",
    help="Maintain the copies on this node.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@with_options
def localize_command(
    cache: Annotated[str, typer.Argument(help="The shared cache: a path, or a URL.")],
    options: LocalizeOptions,
    megatron: Annotated[
        str | None,
        typer.Option(
            metavar="[RELEASE,...]",
            help="Also write Megatron's files, and print its options; with the names that these "
            "releases look for, for example 0.18,0.19; or automodel, for NeMo Automodel.",
        ),
    ] = None,
    tokenizer: TokenizerOption = None,
    fim_data: FimOption = None,
    prefix: PrefixOption = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="List every node, however many there are.")
    ] = False,
    log_format: LogOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Copy a cache and its .idx files to the local storage of every node; .bin stays shared.

    Run it again to repair: only what is missing or differs is fetched. Under mpiexec or srun the
    first rank of each node does the work.

    Examples
    --------
        srun --mpi=pmi2 --ntasks-per-node=1 distcache localize /shared/caches/pretrain.h5

        distcache localize /shared/caches/pretrain.h5 --store /scratch/distcache --megatron

        distcache localize s3://lake/pretrain.h5 --bin copy --parallel 16
    """
    naming = None
    if megatron is not None:
        naming = naming_from(tokenizer, megatron, fim_data=fim_data)
    elif tokenizer is not None or fim_data is not None:
        raise ConfigError("--tokenizer and --fim-data decide the names of --megatron: give it, too")
    communicator, problem = _join()
    interrupt_on_signals()
    options = msgspec.structs.replace(
        options,
        naming=naming,
        moves=moves_from(prefix or [], os.environ),
    )
    begin = time.monotonic()
    with make_progress(log_format, communicator.rank) as progress:
        if problem and is_first_task(os.environ):
            progress.note(f"warning: every process copies for its own node: {problem}")
        done = localize(communicator, cache, options, progress)
    if communicator.rank == 0:
        if as_json:
            print_json(done)
        else:
            _show(done, time.monotonic() - begin, verbose=verbose)


def _join() -> tuple[Communicator, str]:
    """Join the other ranks; if that is impossible, return why, and a single process."""
    try:
        return connect(), ""
    except ConfigError as error:
        return SerialCommunicator(), str(error)


def _show(done: Localized, seconds: float, *, verbose: bool) -> None:
    typer.echo(f"cache      {done.source}, key {done.key}")
    if verbose or len(done.nodes) <= MAX_ROWS:
        _show_nodes(done.nodes)
    read, kept = (sum(sizes) for sizes in zip(*((n.read, n.kept) for n in done.nodes), strict=True))
    failed = [node for node in done.nodes if node.problem]
    without = f"; {len(failed)} of them without a copy" if failed else ""
    nodes = counted(len(done.nodes), "node")
    typer.echo(
        f"done       {nodes} in {seconds:.1f} s: {size_text(read)} read, "
        f"{size_text(kept)} right already{without}"
    )
    for node in failed[:MAX_ROWS]:
        typer.echo(f"# {node.node} reads the shared file: {node.problem}")
    for node in [node for node in done.nodes if node.beyond][:MAX_ROWS]:
        typer.echo(
            f"# {node.node}: the store takes {size_text(node.beyond)} beyond the budget, which "
            "this copy and those in use need"
        )
    typer.echo(f"# for loaders: export DISTCACHE_LOCAL_DIR={shlex.quote(done.nodes[0].directory)}")
    if done.megatron is not None:
        typer.echo(settings_text(done.megatron))
        for warning in done.megatron.warnings:
            typer.echo(f"# note: {warning}")


def _show_nodes(nodes: Sequence[NodeReport]) -> None:
    print_records(
        "",
        [
            {
                "node": node.node,
                "read": size_text(node.read),
                "right already": size_text(node.kept),
                "in memory": size_text(node.memory),
                "copy": node.cache or "none",
            }
            for node in nodes
        ],
    )


def _store_at(directory: Path | None) -> Store:
    return open_store(required_directory(directory, os.environ))


@local_app.command("ls")
def list_command(directory: StoreOption = None, as_json: JsonOption = False) -> None:
    """List the complete caches of this node's store, the most recently used first.

    Example:

        distcache local ls --store /scratch/distcache
    """
    held = list_store(_store_at(directory))
    if as_json:
        print_json(held)
        return
    print_records(
        "",
        [
            {
                "cache": entry.record.name,
                "made of": entry.record.source,
                "size": size_text(entry.nbytes),
                "last use": datetime.fromtimestamp(entry.last_use, UTC).isoformat(" ", "seconds"),
                "in use": "yes" if entry.used else "",
            }
            for entry in held
        ],
    )


@local_app.command("fetcher")
def fetcher_command(directory: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show how this node's fetcher is: what it has read ahead, from buckets and from the disk.

    Exit code 5 if none runs: training starts it.

    Example:

        distcache local fetcher --store /scratch/distcache --json
    """
    store = _store_at(directory)
    status = fetcher_status(store.ahead)
    if status is None:
        raise NotReady(f"{store.root}: no fetcher runs; training starts it when it needs one")
    if as_json:
        print_json(status)
        return
    served = status.hits + status.misses
    typer.echo(
        f"process   {status.process} on {counted(status.cores, 'core')}, {status.clients} clients, "
        f"{status.streams} streams"
    )
    typer.echo(
        f"ahead     {size_text(status.held)} of {size_text(status.budget)}: {status.ahead:,} "
        f"ranges, {status.queued:,} more were asked for"
    )
    typer.echo(f"hits      {status.hits:,} of {served:,} ranges were ahead when they were read")
    typer.echo(
        f"fetched   {size_text(status.fetched)} for {size_text(status.used)} that were read, by "
        f"{status.requests:,} requests, {status.retries:,} of them again"
    )
    if status.note:
        typer.echo(f"# {status.note}")


@local_app.command("verify")
def verify_command(
    directory: StoreOption = None,
    threads: Annotated[int, typer.Option("--parallel", min=1, help="Files read at a time.")] = 4,
    log_format: LogOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Compare every byte of this node's copies with its digest. Exit code 4 if any differs.

    Example:

        distcache local verify --store /scratch/distcache
    """
    store = _store_at(directory)
    with make_progress(log_format) as progress:
        problems = verify_store(store, threads, progress)
    if as_json:
        print_json({"directory": str(store.root), "problems": problems})
    if problems:
        raise CacheCorrupt(*problems, "run `distcache localize` again, which repairs them")
    if not as_json:
        typer.echo(f"{store.root}: all copies are right")


@local_app.command("gc")
def collect_command(
    budget: Annotated[str, typer.Option(help="Bytes that the store may take, for example 200G.")],
    directory: StoreOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Remove nothing; say what would be removed.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove the least recently used caches from this node's store, down to a budget.

    Example:

        distcache local gc --store /scratch/distcache --budget 200G
    """
    store = _store_at(directory)
    with make_progress("auto") as progress:
        done = collect(store, parse_size(budget), progress, dry_run=dry_run)
    if as_json:
        print_json(done)
        return
    verb = "would remove" if dry_run else "removed"
    for name in done.removed:
        typer.echo(f"{verb} {name}")
    for name in done.in_use:
        typer.echo(f"in use {name}")
    freed, left = size_text(done.freed), size_text(done.nbytes)
    if dry_run:
        typer.echo(f"{store.root}: {freed} would be freed, {left} would be left")
    else:
        typer.echo(f"{store.root}: {freed} freed, {left} are left")
