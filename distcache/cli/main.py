"""The `distcache` command: its groups, and how every error becomes a message and an exit code."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import time
import traceback
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from distcache import __version__
from distcache.cli.commands import LazyGroup, add_commands
from distcache.cli.signals import ENDING, ignore_signals
from distcache.errors import BuildInterrupted, DistcacheError, NoSpace

if TYPE_CHECKING:
    from distcache.ranks.communicator import Communicator

__all__ = ["app", "main"]

app = typer.Typer(
    name="distcache",
    cls=LazyGroup,
    rich_markup_mode=None,  # importing rich takes as long as all the rest of `--help`
    help="Build Megatron-style index caches with all MPI ranks, before training starts.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 done, 2 usage or configuration, 3 unsound corpus, 4 corrupt cache, "
    "5 not found or not ready, 6 no space, 7 key mismatch, 8 interrupted and resumable, 1 anything "
    "else.",
)
# Seconds in which all ranks notice a signal that a launcher sends to all of them. If they do, each
# ends with the exit code of an interrupted build; if not, MPI ends them, with a code of its own.
GRACE: Final = 10.0
# Seconds in which a launcher passes on what was written, before it ends all ranks.
LAST_WORDS: Final = 0.3


def _version(show: bool) -> None:
    if show:
        typer.echo(f"distcache {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Build Megatron-style index caches with all MPI ranks, before training starts."""


add_commands(app)


def main() -> None:
    """Run the command line; the entry point of the `distcache` script."""
    # Until the ranks have joined, a signal must end a process at once: its launcher then ends all.
    for number in ENDING:
        signal.signal(number, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app(standalone_mode=True)
    except DistcacheError as error:
        _fail(error)
    except MemoryError as error:
        _fail(NoSpace(f"not enough memory: {error}"))
    except BrokenPipeError:
        _end(1, together=False)
    except OSError as error:
        _fail(DistcacheError(str(error)))
    except SystemExit:
        raise
    except BaseException:  # noqa: BLE001  one rank's surprise must not leave the others waiting
        with contextlib.suppress(OSError, ValueError):
            print(traceback.format_exc(), file=sys.stderr, end="")  # noqa: T201
        _end(1, together=False)


def _fail(error: DistcacheError) -> NoReturn:
    ignore_signals()  # a launcher that sees another rank end must not change this one's exit code
    communicator = _connected()
    if isinstance(error, BuildInterrupted) and communicator is not None:
        error.agreed = communicator.meet(GRACE)
    if not error.agreed or communicator is None or communicator.rank == 0:
        with contextlib.suppress(OSError, ValueError):
            for problem in error.problems:
                print(f"distcache: {problem}", file=sys.stderr)  # noqa: T201
    if isinstance(error, BuildInterrupted) and error.agreed:
        _flush()
        os._exit(error.exit_code)  # MPI would wait for the messages that were on their way
    _end(error.exit_code, together=error.agreed)


def _connected() -> Communicator | None:
    """Return the communicator that a command has joined, without importing what it has not."""
    module = sys.modules.get("distcache.ranks.communicator")
    found: Communicator | None = None if module is None else module.connected()
    return found


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            # Whoever read it is gone; what is left would be flushed once more at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _end(exit_code: int, *, together: bool) -> NoReturn:
    """End this process, and all ranks with it unless they end by themselves."""
    _flush()
    communicator = _connected()
    if communicator is not None and communicator.size > 1 and not together:
        time.sleep(LAST_WORDS)
        communicator.abort(exit_code)
    sys.exit(exit_code)
