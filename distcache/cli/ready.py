"""`distcache ready`."""

from __future__ import annotations

from typing import Annotated

import typer

from distcache.cache.readiness import State, look, wait
from distcache.cli.common import JsonOption, LogOption
from distcache.cli.show import make_progress, print_json
from distcache.errors import BuildInterrupted, NotReady


def ready_command(
    cache: Annotated[str, typer.Argument(help="The cache that is built: a path, or a URL.")],
    patience: Annotated[
        float | None, typer.Option("--wait", min=0, help="Seconds to wait for it.")
    ] = None,
    log_format: LogOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Show whether a cache is ready, or the progress of its build.

    Exit code 0: it is ready. 5: it is not, or not yet. 8: its builder has died or hangs; building
    again resumes. With --wait it returns at once when the cache is ready or the builder has died.

    Examples
    --------
        distcache ready /shared/caches/pretrain.h5

        distcache ready /shared/caches/pretrain.h5 --wait 1800 && srun python train.py
    """
    if patience is None:
        found = look(cache)
    else:
        with make_progress(log_format) as progress:
            found = wait(cache, patience, lambda seen: progress.note(str(seen)))
    if as_json:
        print_json(found)
    elif found.state not in (State.dead, State.hung):
        typer.echo(str(found))
    if found.state in (State.dead, State.hung):
        raise BuildInterrupted(f"{found}; {found.advice}")
    if found.state is not State.ready:
        raise typer.Exit(NotReady.exit_code)
