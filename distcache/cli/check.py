"""`distcache check`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer

from distcache.cli.output import print_json, print_table
from distcache.cli.signals import interrupt_on_signals
from distcache.corpus import CorpusFacts, Fault
from distcache.corpus.examine import examine
from distcache.errors import CorpusError
from distcache.ranks.communicator import connect

__all__ = ["check_command"]


def check_command(
    prefixes: Annotated[list[str], typer.Argument(help="Corpora: paths without .idx or .bin.")],
    threads: Annotated[int, typer.Option(min=1, help="Files that each rank reads at a time.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
) -> None:
    """Check that corpora are sound, and report every fault of every corpus.

    Runs alone or under mpiexec or srun; the bytes are split over the ranks. Exit code 3 if any
    corpus is unsound.

    Examples
    --------
        distcache check data/web data/code

        mpiexec -n 8 distcache check data/* --json
    """
    bare = (prefix.removesuffix(".idx").removesuffix(".bin") for prefix in prefixes)
    unique = list(dict.fromkeys(bare))
    communicator = connect()
    interrupt_on_signals()
    facts, faults = examine(communicator, unique, threads)
    if communicator.rank == 0:
        if as_json:
            print_json(
                {
                    "corpora": [msgspec.to_builtins(found) for found in facts.values()],
                    "faults": [msgspec.to_builtins(fault) for fault in faults],
                }
            )
        else:
            _show(list(facts.values()), faults)
    if faults:
        unsound = len({fault.prefix for fault in faults})
        error = CorpusError(f"{unsound} of {len(unique)} corpora are unsound")
        error.agreed = True
        raise error


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
