"""`distcache check`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from distcache.cli.libraries import needing_libraries
from distcache.cli.merge import bare_prefix
from distcache.cli.output import print_json, print_table
from distcache.cli.signals import interrupt_on_signals
from distcache.corpus import CorpusFacts, Fault
from distcache.corpus.examine import examine
from distcache.errors import CorpusError
from distcache.ranks.agreement import from_rank_0
from distcache.ranks.communicator import Communicator, connect

if TYPE_CHECKING:
    from distcache.corpus.receipt import Receipt

__all__ = ["check_command"]


def check_command(
    prefixes: Annotated[list[str], typer.Argument(help="Corpora: paths without .idx or .bin.")],
    against: Annotated[
        list[str] | None,
        typer.Option(help="Receipts, or directories with receipts, to compare with."),
    ] = None,
    readback: Annotated[
        int,
        typer.Option(min=0, help="Documents of each corpus to read again from their source."),
    ] = 0,
    vocab_size: Annotated[
        int | None, typer.Option(min=1, help="Token ids must be below it; reads every token.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="For --readback, if it is not where the receipt says.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Files that each rank reads at a time.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
) -> None:
    """Check that corpora are sound, and report every fault of every corpus.

    Runs alone or under mpiexec or srun; the bytes are split over the ranks. Exit code 3 if any
    corpus is unsound. With --against or --readback, it must also be what its receipt says.

    Examples
    --------
        distcache check data/web data/code

        mpiexec -n 8 distcache check data/* --against data/ --readback 100
    """
    unique = list(dict.fromkeys(map(bare_prefix, prefixes)))
    communicator = connect()
    interrupt_on_signals()
    facts, faults = examine(communicator, unique, threads)
    if against or readback or vocab_size is not None:
        faults = (
            *faults,
            *_audit(
                communicator, facts, len(unique), against or [], readback, vocab_size, tokenizer
            ),
        )
    if communicator.rank == 0:
        wrong = {fault.prefix for fault in faults}
        sound = [found for prefix, found in facts.items() if prefix not in wrong]
        if as_json:
            print_json(
                {
                    "corpora": [msgspec.to_builtins(found) for found in sound],
                    "faults": [msgspec.to_builtins(fault) for fault in faults],
                }
            )
        else:
            _show(sound, faults)
    if faults:
        unsound = len({fault.prefix for fault in faults})
        error = CorpusError(f"{unsound} of {len(unique)} corpora are unsound")
        error.agreed = True
        raise error


def _audit(
    communicator: Communicator,
    facts: dict[str, CorpusFacts],
    asked: int,
    against: list[str],
    readback: int,
    vocab_size: int | None,
    tokenizer: str | None,
) -> Sequence[Fault]:
    with needing_libraries():
        from distcache.corpus.receipt import Receipt  # noqa: PLC0415
        from distcache.ingest.audit import audit, find_receipts  # noqa: PLC0415

    def find() -> tuple[dict[str, Receipt], list[Fault]]:
        return find_receipts(facts, against, asked) if against or readback else ({}, [])

    receipts, missing = from_rank_0(
        communicator, find, tuple[dict[str, Receipt], list[Fault]], "reading receipts"
    )
    found = audit(communicator, facts, receipts, vocab_size, readback, tokenizer)
    return [*missing, *found]


def _show(facts: Sequence[CorpusFacts], faults: Sequence[Fault]) -> None:
    if facts:
        print_table(
            "Sound corpora",
            ["corpus", "sequences", "documents", "tokens", "empty", "idx digest"],
            [
                [f.prefix, f.sequences, f.documents, f.tokens, f.empty_sequences, f.idx_digest]
                for f in facts
            ],
        )
    if faults:
        print_table("Faults", ["file", "what is wrong"], [[f.path, f.message] for f in faults])
