"""`distcache ready`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from distcache.cli.output import LogFormat, make_progress, print_json
from distcache.errors import BuildInterrupted, NotReady
from distcache.train.readiness import State, look, wait

__all__ = ["ready_command"]


def ready_command(
    cache: Annotated[Path, typer.Argument(help="The cache that is built.", readable=False)],
    patience: Annotated[
        float | None, typer.Option("--wait", min=0, help="Seconds to wait for it.")
    ] = None,
    log_format: Annotated[
        LogFormat, typer.Option("--log-format", help="Progress on standard error.")
    ] = LogFormat.auto,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
) -> None:
    """Say whether a cache is ready, and how far its build is otherwise.

    Exit code 0: it is ready. 5: it is not, or not yet. 8: its builder has died; building again
    resumes. With --wait it returns at once when the cache is ready or the builder has died.

    Examples
    --------
        distcache ready /shared/caches/pretrain.h5

        distcache ready /shared/caches/pretrain.h5 --wait 1800 && srun python train.py
    """
    if patience is None:
        found = look(cache)
    else:
        with contextlib.closing(make_progress(log_format)) as progress:
            found = wait(cache, patience, lambda seen: progress.note(str(seen)))
    if as_json:
        print_json(msgspec.to_builtins(found))
    elif found.state not in (State.dead, State.hung):
        typer.echo(str(found))
    if found.state in (State.dead, State.hung):
        raise BuildInterrupted(f"{found}; {found.advice}")
    if found.state is not State.ready:
        raise typer.Exit(NotReady.exit_code)
