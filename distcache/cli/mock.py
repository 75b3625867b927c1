"""`distcache mock`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from distcache.cli.common import JsonOption, LogOption, ThreadsOption, path_only
from distcache.cli.show import make_progress, print_json
from distcache.corpus.mock import Mock, MockCorpora, write_mock
from distcache.errors import ConfigError
from distcache.ranks.cores import threads_of, usable_cores
from distcache.storage.files import atomic_write

BLEND: Final = "blend.json"
SEQUENCE_LENGTH: Final = 4096
FEW_DOCUMENTS: Final = 200


def mock_command(
    out: Annotated[
        Path, typer.Option("--out", "-o", callback=path_only, help="Directory for the corpora.")
    ],
    documents: Annotated[
        str, typer.Option(help="Documents of all corpora together, for example 2e7.")
    ] = "1e6",
    lengths: Annotated[
        str,
        typer.Option(help="constant:TOKENS, uniform:LEAST:MOST or lognormal:MEAN:SIGMA."),
    ] = "lognormal:600:1.2",
    vocabulary: Annotated[
        int, typer.Option("--vocab-size", min=1, max=2**31 - 1, help="Size of the vocabulary.")
    ] = 128_256,
    corpora: Annotated[int, typer.Option(min=1, max=1_000_000, help="Number of corpora.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="The same one gives the same bytes.")] = 0,
    fill: Annotated[
        bool, typer.Option("--fill", help="Write random tokens; by default .bin files are holes.")
    ] = False,
    threads: ThreadsOption = 0,
    log_format: LogOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Make up corpora and a blend of them, for tests of infrastructure.

    Sizes of corpora and lengths of documents are those of real data; the tokens are zeros that
    take no space, or random. DIR/blend.json is a configuration for all of them.

    Examples
    --------
        distcache mock --documents 2e7 --corpora 800 --out /scratch/mock

        distcache build /scratch/mock/blend.json -o /scratch/caches
    """
    mock = Mock(
        documents=_count(documents),
        lengths=lengths,
        vocabulary=vocabulary,
        corpora=corpora,
        seed=seed,
        fill=fill,
    )
    directory = out.absolute()
    threads = threads or threads_of(usable_cores(), 1)
    with make_progress(log_format) as progress:
        made = write_mock(mock, directory, threads, progress)
    blend = directory / BLEND
    with atomic_write(blend) as stream:
        stream.write(_blend(made).encode("utf-8"))
    if as_json:
        print_json({"blend": str(blend), "tokens": sum(made.tokens), "corpora": made.prefixes})
    else:
        typer.echo(str(blend))


def _count(text: str) -> int:
    try:
        count = float(text)
        if count != int(count):
            raise ValueError
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"--documents {text}: expected a number, such as 2e7") from error
    return int(count)


def _blend(made: MockCorpora) -> str:
    """Return a configuration that draws each corpus about once."""
    if min(made.documents) < FEW_DOCUMENTS:  # some splits and shares would be empty
        length = max(1, min(64, min(made.tokens) - 1))  # a sample of each corpus at least
        document: dict[str, Any] = {"sequence_length": length, "split": "1,0,0"}
        return json.dumps(document | {"blend": made.prefixes}, indent=1) + "\n"
    total = sum(made.tokens)
    samples = max(1, total // SEQUENCE_LENGTH)
    blend = [
        {"path": prefix, "weight": tokens / total}
        for prefix, tokens in zip(made.prefixes, made.tokens, strict=True)
    ]
    document = {
        "sequence_length": SEQUENCE_LENGTH,
        "split": "99,1,0",
        "samples": {"train": samples - samples // 100, "valid": samples // 100, "test": 0},
        "blend": blend,
    }
    return json.dumps(document, indent=1) + "\n"
