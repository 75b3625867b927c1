"""`distcache feed`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from distcache.cli.common import LogOption, interrupt_on_signals, path_only
from distcache.cli.show import make_progress
from distcache.errors import BuildInterrupted
from distcache.storage.units import parse_size
from distcache.train.feed import Feeder
from distcache.train.open_files import open_files


def feed_command(
    cache: Annotated[str, typer.Argument(help="The shared cache.")],
    budget: Annotated[str, typer.Option(help="Bytes that unpacked shards may take, such as 200G.")],
    to: Annotated[
        Path | None,
        typer.Option(
            "--store", callback=path_only, help="The store; by default where `localize` puts it."
        ),
    ] = None,
    start: Annotated[
        int, typer.Option(min=0, help="The first sample of training, when it resumes.")
    ] = 0,
    threads: Annotated[int, typer.Option(min=1, help="Shards unpacked at a time.")] = 2,
    log_format: LogOption = "auto",
) -> None:
    """Unpack shards ahead of training on this node, and give them up behind it, within a budget.

    For caches with `order: windows` whose unpacked shards do not fit on a node, localized with
    --shards windows. Runs beside training, one per node, until it is ended by a signal.

    Examples
    --------
        distcache feed /shared/caches/mix.h5 --budget 500G &

        torchrun ... train.py; kill %1
    """
    interrupt_on_signals("training waits for shards until it is started again")
    feeder = Feeder(open_files(cache, to, None), parse_size(budget, least=1), threads, start)
    with make_progress(log_format) as progress:
        try:
            feeder.run(progress)
        except BuildInterrupted:
            progress.note(f"{feeder.unpacked} shards were unpacked")
        finally:
            feeder.close()
