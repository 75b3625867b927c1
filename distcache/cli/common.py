"""What commands have in common: options, the syntax of sizes and times, signals."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final

import typer

from distcache.cli.show import LogFormat
from distcache.errors import ConfigError
from distcache.storage.interruption import end_by_itself, interrupt_at
from distcache.storage.units import parse_size

URL: Final = re.compile("[a-z][a-z0-9+.-]*:/")  # Path joins slashes


def path_only(value: Any) -> Any:
    """Refuse a URL where only a path will do; the callback of such arguments and options.

    Raises
    ------
    ConfigError
        If it is one, or one of them is.
    """
    for word in value if isinstance(value, list) else [value]:
        if URL.match(str(word)):
            raise ConfigError(f"{word}: cannot be in a bucket; give a path")
    return value


JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON to standard output.")]
LogOption = Annotated[LogFormat, typer.Option("--log-format", help="Progress on standard error.")]
OutOption = Annotated[
    str, typer.Option("--out", "-o", help="Path or URL of the corpus, without suffix.")
]
PathOutOption = Annotated[
    str,
    typer.Option("--out", "-o", callback=path_only, help="Path of the corpus, without suffix."),
]
ThreadsOption = Annotated[
    int,
    typer.Option(
        "--threads",
        min=0,
        max=1024,
        help="Threads of each rank; 0 is its share of the cores of its node.",
    ),
]
MegatronOption = Annotated[
    str | None,
    typer.Option(
        metavar="RELEASE,...",
        help="Names that these releases look for, for example 0.18,0.19.",
    ),
]
TokenizerOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        callback=path_only,
        help="A description.txt that Megatron wrote, or YAML or JSON with its options of the "
        "tokenizer (tokenizer_type, tokenizer_model, ...); by default as the cache says.",
    ),
]
FimOption = Annotated[
    bool | None,
    typer.Option(
        "--fim-data/--no-fim-data",
        help="Names for training with --fim-data, or without; by default as the cache says.",
    ),
]
WorkOption = Annotated[
    str,
    typer.Option(
        "--work",
        metavar="DIRECTORY",
        help="Directory that all ranks share, for fetched objects and for outputs before their "
        "upload.",
    ),
]
PrefixOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FROM=TO",
        help="Directories of corpora at the time of the build, and now; may be repeated. By "
        "default as DISTCACHE_PREFIX says, with commas between pairs.",
    ),
]
WORK: Final = ".distcache-work"
LimitOption = Annotated[
    str | None, typer.Option("--memory-limit", help="Memory per rank, for example 8G.")
]
ReuseOption = Annotated[
    list[Path] | None,
    typer.Option(
        callback=path_only,
        help="Another cache, from which sections with the same keys are copied.",
    ),
]

# Those of the terminal, of Slurm at a time limit or preemption, and usual ones of --signal and of
# time limits of schedulers.
ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)
# minutes[:seconds], hours:minutes:seconds, days-hours[:minutes[:seconds]]
FORMS: Final = (
    re.compile(r"(?P<minutes>\d{1,6})(:(?P<seconds>\d{1,6}))?"),
    re.compile(r"(?P<hours>\d{1,6}):(?P<minutes>\d{1,6}):(?P<seconds>\d{1,6})"),
    re.compile(
        r"(?P<days>\d{1,6})-(?P<hours>\d{1,6})(:(?P<minutes>\d{1,6}))?(:(?P<seconds>\d{1,6}))?"
    ),
)
MINUTES: Final = {"days": 1440, "hours": 60, "minutes": 1}


def interrupt_on_signals(advice: str = "run again to resume") -> None:
    """From now on, raise `BuildInterrupted` on a signal, as `interrupt_at` does.

    Call it after the ranks have joined: while they join, no Python code runs.

    Parameters
    ----------
    advice : str
        Advice for the user after an interruption, or what continues without this process.
    """
    global _advice  # noqa: PLW0603  of the process
    _advice = advice
    for number in ENDING:
        signal.signal(number, _interrupt)


def ignore_signals() -> None:
    """From now on, ignore signals: the process ends by itself."""
    end_by_itself()
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


_advice = ""


def _interrupt(number: int, frame: FrameType | None) -> None:
    module = sys.modules.get("distcache.ranks.connect")
    communicator = None if module is None else module.connected()
    alone = communicator is None or communicator.size == 1
    message = f"interrupted by {signal.Signals(number).name}; {_advice}"
    interrupt_at(frame, number, message, alone=alone)


def optional_size(text: str | None) -> int | None:
    """Parse an optional number of bytes, which is not zero."""
    return None if text is None else parse_size(text, least=1)


def parse_minutes(text: str | None) -> int | None:
    """Parse a time limit in any form that sbatch accepts; return minutes, rounded up.

    Raises
    ------
    ConfigError
        If it has another form, or is zero.
    """
    if text is None:
        return None
    for form in FORMS:
        if (found := form.fullmatch(text.strip())) is not None:
            parts = {name: int(value or 0) for name, value in found.groupdict().items()}
            minutes = sum(size * parts.get(name, 0) for name, size in MINUTES.items())
            minutes += -(-parts.get("seconds", 0) // 60)
            if minutes:
                return minutes
    raise ConfigError(
        f"--time {text!r}: expected minutes, H:MM:SS or D-HH:MM:SS, as sbatch does, and more than 0"
    )
