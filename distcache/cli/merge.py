"""`distcache merge` and `distcache convert`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer

from distcache.cli.output import LogFormat, make_progress, print_json
from distcache.cli.signals import interrupt_on_signals
from distcache.corpus.merge import convert, merge
from distcache.corpus.receipt import Receipt
from distcache.ranks.communicator import Communicator, connect
from distcache.ranks.cores import share_of_cores

# A pattern of the shell names each corpus by several files.
ENDS = (".idx", ".bin", ".receipt.json")

__all__ = ["bare_prefix", "convert_command", "merge_command"]

OutOption = Annotated[str, typer.Option("--out", "-o", help="Path of the corpus, without suffix.")]
LogOption = Annotated[LogFormat, typer.Option("--log-format", help="Progress on standard error.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Write the receipt to standard output.")]


def bare_prefix(word: str) -> str:
    """Return the prefix of a corpus that is named by one of its files."""
    return next((word.removesuffix(end) for end in ENDS if word.endswith(end)), word)


def fold(words: Sequence[str]) -> list[str]:
    """Return the corpora that words name: one of several files, or several times if it is."""
    seen: dict[str, set[str]] = {}
    prefixes = []
    for word in words:
        prefix = bare_prefix(word)
        forms = seen.setdefault(prefix, set())
        if word in forms or not forms:
            forms.clear()
            prefixes.append(prefix)
        forms.add(word)
    return prefixes


def merge_command(
    prefixes: Annotated[list[str], typer.Argument(help="Corpora: paths without .idx or .bin.")],
    out: OutOption,
    mixed_tokenizers: Annotated[
        bool, typer.Option("--mixed-tokenizers", help="Merge what different tokenizers have made.")
    ] = False,
    log_format: LogOption = LogFormat.auto,
    as_json: JsonOption = False,
) -> None:
    """Put corpora together into one, in this order, as Megatron's own merge does.

    Runs alone or under mpiexec or srun; the bytes are split over the ranks.

    Examples
    --------
        distcache merge data/web-00000 data/web-00001 -o data/web

        mpiexec -n 8 distcache merge data/part-* -o data/all
    """
    communicator = connect()
    interrupt_on_signals()
    unique = fold(prefixes)
    with contextlib.closing(make_progress(_format(communicator, log_format))) as progress:
        threads = share_of_cores(communicator)
        receipt = merge(communicator, unique, out, threads, progress, mixed=mixed_tokenizers)
    _show(communicator, receipt, out, as_json)


def convert_command(
    prefix: Annotated[str, typer.Argument(help="A corpus: its path without .idx or .bin.")],
    out: OutOption,
    drop_modes: Annotated[
        bool, typer.Option("--drop-modes", help="Leave the modes of multimodal data out.")
    ] = False,
    log_format: LogOption = LogFormat.auto,
    as_json: JsonOption = False,
) -> None:
    """Write a legacy (TNTIDX) or multimodal corpus as one that today's Megatron reads.

    Examples
    --------
        distcache convert old/web -o data/web

        distcache convert data/pictures -o data/text-only --drop-modes
    """
    communicator = connect()
    interrupt_on_signals()
    with contextlib.closing(make_progress(_format(communicator, log_format))) as progress:
        threads = share_of_cores(communicator)
        source = bare_prefix(prefix)
        receipt = convert(communicator, source, out, threads, progress, drop_modes=drop_modes)
    _show(communicator, receipt, out, as_json)


def _format(communicator: Communicator, wanted: LogFormat) -> LogFormat:
    return wanted if communicator.rank == 0 else LogFormat.none


def _show(communicator: Communicator, receipt: Receipt, out: str, as_json: bool) -> None:
    if communicator.rank != 0:
        return
    if as_json:
        print_json(msgspec.to_builtins(receipt))
    else:
        typer.echo(out)
