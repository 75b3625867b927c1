"""`distcache show`."""

from __future__ import annotations

from typing import Annotated

import typer

from distcache.cli.common import JsonOption, path_only
from distcache.cli.corpora import bare_prefix
from distcache.cli.show import print_json
from distcache.corpus.examine import require_sound
from distcache.extras import needing
from distcache.ranks.communicator import SerialCommunicator
from distcache.storage.units import counted

MOST_TOKENS = 64


def show_command(
    corpus: Annotated[
        str, typer.Argument(callback=path_only, help="A corpus: its path without .idx or .bin.")
    ],
    numbers: Annotated[
        list[str] | None,
        typer.Argument(metavar="[N|A:B]...", help="Documents, from 0; by default the first."),
    ] = None,
    random: Annotated[int, typer.Option(min=0, help="So many documents at random.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of --random.")] = 0,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Tokenizer for the text, if the receipt beside the corpus names none."),
    ] = None,
    tokens: Annotated[
        int, typer.Option(min=0, help="Tokens of each document that are shown; 0 is all.")
    ] = MOST_TOKENS,
    as_json: JsonOption = False,
) -> None:
    """Show documents of a corpus: their tokens, their text, and the rows they were made of.

    Examples
    --------
        distcache show data/web 0 17 100:110

        distcache show data/web --random 5 --tokenizer tokenizer.json
    """
    with needing("showing documents"):
        from distcache.edit.show_documents import (  # noqa: PLC0415
            document_numbers,
            show_documents,
        )
        from distcache.ingest.tokenizers.find import tokenizer_of  # noqa: PLC0415
    prefix = bare_prefix(corpus)
    facts = require_sound(SerialCommunicator(), [prefix], 1)[prefix]
    chosen = document_numbers(numbers or [], random, seed, facts.documents)
    found = show_documents(facts, chosen, tokenizer_of(prefix, tokenizer))
    if as_json:
        print_json({"corpus": prefix, "documents": found})
        return
    for document in found:
        shown = document.tokens[: tokens or None]
        more = f" ... of {len(document.tokens):,}" if len(shown) < len(document.tokens) else ""
        typer.echo(
            f"document {document.document}: {len(document.tokens):,} tokens in "
            f"{counted(len(document.sequences), 'sequence')}"
        )
        if document.source is not None:
            typer.echo(
                f"  from {document.source}, row {document.row} of its part from "
                f"{document.begin:,} to {document.end:,}"
            )
        typer.echo(f"  tokens {' '.join(map(str, shown))}{more}")
        if document.text is not None:
            typer.echo(
                f"  text {document.text!r}"
                if not tokens
                else f"  text {document.text[: 8 * tokens]!r}"
            )
