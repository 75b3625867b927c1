"""What commands have in common: options and signals."""

from __future__ import annotations

import difflib
import os
import re
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated, Final

import typer

from distcache.cli.show import LogFormat
from distcache.storage.interruption import end_by_itself, interrupt_at
from distcache.storage.url import path_only

# A shell pattern matches several files of each corpus.
PLAIN: Final = re.compile(r"[\w@%+=:,.-]+")
ENDS: Final = (".idx", ".bin", ".shards", ".receipt.json")


def bare_prefix(word: str) -> str:
    """Return the prefix of a corpus, from the path of one of its files."""
    return next((word.removesuffix(end) for end in ENDS if word.endswith(end)), word)


def _corpus_path(word: str) -> str:
    return bare_prefix(path_only(word))


def complete_corpora(incomplete: str) -> list[str]:
    """Complete the path of a corpus, for a shell, which knows paths of files only.

    A shell takes what is offered as it is, so names that it would have to quote are left to it.
    """
    here, begin = os.path.split(incomplete)
    try:
        entries = sorted(os.scandir(here or "."), key=lambda entry: entry.name)
    except OSError:
        return []
    found = []
    for entry in entries:
        hidden = entry.name.startswith(".") and not begin.startswith(".")
        if hidden or not entry.name.startswith(begin) or not PLAIN.fullmatch(entry.name):
            continue
        if os.path.isdir(entry.path):  # which a loop of links is not
            found.append(os.path.join(here, entry.name, ""))
        elif entry.name.endswith(".idx"):
            found.append(os.path.join(here, entry.name.removesuffix(".idx")))
    if len(found) == 1 and found[0].endswith("/"):
        return [] if os.path.islink(found[0][:-1]) else complete_corpora(found[0])
    return found


DealOption = Annotated[
    str | None,
    typer.Option(
        metavar="BATCHxRANKSxMICRO",
        help="Deal of each step of training to ranks, for equal work: samples of a step, "
        "data-parallel ranks, samples of a micro batch.",
    ),
]
CorpusArgument = Annotated[
    str,
    typer.Argument(
        callback=path_only,
        autocompletion=complete_corpora,
        help="A corpus: its path without .idx or .bin.",
    ),
]
CorporaArgument = Annotated[
    list[str],
    typer.Argument(autocompletion=complete_corpora, help="Corpora: paths without .idx or .bin."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON to standard output.")]
LogOption = Annotated[LogFormat, typer.Option("--log-format", help="Progress on standard error.")]
OutOption = Annotated[
    str,
    typer.Option("--out", "-o", callback=_corpus_path, help="Path of the corpus, without suffix."),
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
        help="Names that these releases look for, for example 0.18,0.19; or automodel, for NeMo "
        "Automodel.",
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
        metavar="DIR",
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
# Those of the terminal, of Slurm at a time limit or preemption, and usual ones of --signal and of
# time limits of schedulers.
ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)


def misspelt(words: Iterable[str], known: Sequence[str]) -> str:
    """Return what is said of the first option that none of the known ones is; empty if all are."""
    for word in words:
        name = word.partition("=")[0]
        if name.startswith("--") and name not in (*known, "--help"):
            near = difflib.get_close_matches(name, known, n=1)
            return f"unknown option or word: {name}" + (
                f"; did you mean {near[0]}?" if near else ""
            )
    return ""


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
