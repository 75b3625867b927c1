"""The `distcache` command: its groups, and how every error becomes a message and an exit code."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import signal
import sys
import traceback
import warnings
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from distcache import __version__
from distcache.cli.commands import LazyGroup, add_commands
from distcache.cli.common import ENDING, ignore_signals, misspelt
from distcache.cli.show import print_json_error
from distcache.errors import BuildInterrupted, ConfigError, DistcacheError, NoSpace
from distcache.storage.interruption import interruption
from distcache.storage.timeouts import limits
from distcache.storage.watchdog import has_abandoned_thread

if TYPE_CHECKING:
    from distcache.ranks.communicator import Communicator

app = typer.Typer(
    name="distcache",
    cls=LazyGroup,
    rich_markup_mode=None,  # importing rich takes as long as all the rest of `--help`
    help="Build the index arrays of Megatron-style training before training starts.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"]},
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 done, 2 usage, 3 unsound corpus, 4 corrupt cache, 5 missing or not "
    "ready, 6 no space, 7 other key, 8 interrupted: run again, 1 anything else.",
)


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
    """Build the index arrays of Megatron-style training before training starts."""


add_commands(app)


def main() -> None:
    """Run the command line."""
    # Until the ranks have joined, a signal must end a process at once: its launcher then ends all.
    for number in ENDING:
        signal.signal(number, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    warnings.showwarning = _show_warning
    try:
        code = app(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except SystemExit as done:
        if has_abandoned_thread():
            _leave(done.code if isinstance(done.code, int) else int(done.code is not None))
        raise
    except BaseException as error:  # noqa: BLE001  one rank's surprise must not hang the others
        _end_with(interruption() or error)  # of which a library may have made another one


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Show a warning as other lines of a command, without a place in the code; rank 0 does."""
    communicator = _connected()
    if communicator is None or communicator.rank == 0:
        with contextlib.suppress(OSError, ValueError):
            print(f"distcache: warning: {message}", file=sys.stderr)  # noqa: T201


def _end_with(error: BaseException) -> NoReturn:
    """End with the message and the exit code of an error."""
    if isinstance(error, DistcacheError):
        _fail(error)
    if hasattr(error, "format_message"):  # of the parser of the command line
        _fail(_usage_error(error))
    if isinstance(error, MemoryError):
        _fail(NoSpace(f"not enough memory: {error}"))
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        _fail(NoSpace(f"{error}: not enough memory, or too many processes of this user"))
    if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
        from distcache.storage.files import NO_SPACE  # noqa: PLC0415

        _fail((NoSpace if error.errno in NO_SPACE else DistcacheError)(str(error)))
    _end(1, error)


def _usage_error(error: Any) -> ConfigError:
    """Return the error for words that are no use of a command: one sentence, as of all others."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        raise SystemExit(error.exit_code)
    said = error.format_message().rstrip(".")
    command = "distcache" if error.ctx is None else error.ctx.command_path
    if type(error).__name__ == "MissingParameter" and error.ctx is not None:
        known = [name for option in error.ctx.command.params for name in option.opts]
        said = misspelt(itertools.takewhile(lambda word: word != "--", sys.argv), known) or said
    return ConfigError(f"{said[:1].lower()}{said[1:]}; see {command} --help")


def _fail(error: DistcacheError) -> NoReturn:
    """End with an error: all ranks by themselves if they all have it, else by MPI."""
    ignore_signals()  # a launcher that sees another rank end must not change this one's exit code
    communicator = _connected()
    interrupted = isinstance(error, BuildInterrupted)
    if interrupted and communicator is not None:
        error.is_collective = communicator.barrier(limits().signal)
    alone = communicator is None or communicator.size == 1
    if not (error.is_collective or alone):
        _end(error.exit_code, error)
    if communicator is None or communicator.rank == 0:
        with contextlib.suppress(OSError, ValueError):
            for problem in error.problems:
                print(f"distcache: {problem}", file=sys.stderr)  # noqa: T201
            if "--json" in itertools.takewhile(lambda word: word != "--", sys.argv):
                print_json_error(error)
    if interrupted and not alone:
        _flush()
        os._exit(error.exit_code)  # MPI would wait for the messages that were on their way
    if has_abandoned_thread():
        _leave(error.exit_code)
    _flush()
    sys.exit(error.exit_code)


def _connected() -> Communicator | None:
    """Return the communicator that a command has joined, without importing what it has not."""
    module = sys.modules.get("distcache.ranks.connect")
    found: Communicator | None = None if module is None else module.connected()
    return found


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            # The reader is gone; what is left would be flushed once more at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _leave(exit_code: int) -> NoReturn:
    """End although a thread hangs, for which the interpreter would wait."""
    _flush()
    communicator = _connected()
    if communicator is not None:
        import ctypes  # noqa: PLC0415

        communicator.close()
        # MPICH signs off from its launcher in an exit handler of C, which `os._exit` skips: the
        # launcher would kill the ranks that have not ended yet. This one runs no Python any more.
        ctypes.PyDLL(None).exit(exit_code)
    os._exit(exit_code)


def _end(exit_code: int, error: BaseException) -> NoReturn:
    """End because of an error that only this rank has."""
    _flush()
    communicator = _connected()
    if communicator is not None and communicator.size > 1:
        from distcache.ranks.agreement import abort_job  # noqa: PLC0415

        abort_job(communicator, error)
    if not isinstance(error, BrokenPipeError):
        with contextlib.suppress(OSError, ValueError):
            print("".join(traceback.format_exception(error)), file=sys.stderr, end="")  # noqa: T201
    sys.exit(exit_code)
