"""`distcache ingest text` and `tokens`, and `mock`, which makes corpora up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from distcache.cli.common import (
    WORK,
    JsonOption,
    LogOption,
    OutOption,
    ThreadsOption,
    WorkOption,
    interrupt_on_signals,
)
from distcache.cli.options import with_options
from distcache.cli.show import LogFormat, make_progress, print_json, print_result
from distcache.corpus.mock import Mock, MockCorpora, write_mock
from distcache.errors import ConfigError
from distcache.ingest.inputs import TextOptions, TokenOptions, suffixes_of
from distcache.ingest.tokenizers.tokenizer import TokenizerOptions
from distcache.ranks.connect import connect
from distcache.ranks.job_environment import share_of_cores, threads_of, usable_cores
from distcache.storage.files import atomic_write
from distcache.storage.space import return_large_memory
from distcache.storage.units import counted
from distcache.storage.url import path_only

if TYPE_CHECKING:
    from distcache.ingest.pipeline import IngestOptions

ingest_app = typer.Typer(
    name="ingest",
    help="Make corpora from text and from token shards.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
MAX_THREADS: Final = 64
LARGE_BYTES: Final = 8 << 20  # of a text, with its tokens

BLEND: Final = "blend.json"
SEQUENCE_LENGTH: Final = 4096
FEW_DOCUMENTS: Final = 200
MAX_NAMED: Final = 3  # corpora in a message


@ingest_app.command("text")
@with_options
def text_command(
    inputs: Annotated[
        list[str],
        typer.Argument(
            help="Files .txt, .jsonl (also .gz, .zst, .bz2, .xz), .parquet, .arrow; patterns; "
            "directories; - is standard input."
        ),
    ],
    out: OutOption,
    tokenizer: TokenizerOptions,
    options: TextOptions,
    work: WorkOption = WORK,
    threads: ThreadsOption = 0,
    log_format: LogOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Tokenize text, alone or with all ranks of mpiexec or srun, and write a corpus.

    Token for token what Megatron's preprocess_data writes. After a kill, run it again to resume.

    Examples
    --------
        distcache ingest text data/*.jsonl.zst --tokenizer tokenizer.json --append-eod -o web

        srun --mpi=pmi2 -n 64 distcache ingest text data/ --tokenizer llama.model -o web

        distcache ingest text chats.jsonl --messages messages --tokenizer model/ -o chats

        zcat wiki.gz | distcache ingest text - --format jsonl --tokenizer gpt2/ -o wiki
    """
    if tokenizer.eod is not None:
        options = msgspec.structs.replace(options, append_eod=True)
    return_large_memory(LARGE_BYTES)
    _run(inputs, out, options, tokenizer, threads, log_format, as_json, work)


@ingest_app.command("tokens")
@with_options
def tokens_command(
    inputs: Annotated[
        list[str],
        typer.Argument(
            help="Files .parquet, .arrow, .jsonl, .npy, .ds; patterns; directories; - is standard "
            "input."
        ),
    ],
    out: OutOption,
    options: TokenOptions,
    work: WorkOption = WORK,
    threads: ThreadsOption = 0,
    log_format: LogOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Write tokenized documents as a corpus: rows of tables or lines, or parts of arrays.

    Examples
    --------
        distcache ingest tokens shards/*.parquet --vocab-size 128256 -o web

        mpiexec -n 8 distcache ingest tokens shards/ --column tokens --eod 2 -o web

        distcache ingest tokens part-*.npy --dtype uint16 --eod 50279 --vocab-size 50280 -o dolma
    """
    _run(inputs, out, options, None, threads, log_format, as_json, work)


def _run(
    inputs: Sequence[str],
    out: str,
    options: IngestOptions,
    tokenizer: TokenizerOptions | None,
    threads: int,
    log_format: LogFormat,
    as_json: bool,
    work: str,
) -> None:
    from distcache.ingest.objects import ObjectWork, is_stream  # noqa: PLC0415
    from distcache.ingest.pipeline import ingest  # noqa: PLC0415

    known = suffixes_of(options.formats, options.format)
    if options.format is None and any(map(is_stream, inputs)):
        raise ConfigError("standard input and pipes have no name: give --format")
    communicator = connect()
    interrupt_on_signals()
    threads = threads or share_of_cores(communicator, MAX_THREADS)
    with make_progress(log_format, communicator.rank) as progress:
        objects = ObjectWork(communicator, work, [*inputs, out], progress)
        found = objects.inputs(inputs, known, options.format)
        with objects.naming():
            outcome = ingest(
                communicator, found, out, options, tokenizer, threads, progress, objects.names
            )
        done = "found" if outcome.reused else "wrote"
        corpora = counted(len(outcome.corpora), "corpus", "corpora")
        progress.note(
            f"{done} {corpora}: {outcome.documents:,} documents, "
            f"{outcome.tokens:,} tokens; of {outcome.rows:,} rows {outcome.empty:,} were empty and "
            f"{outcome.skipped:,} were skipped"
        )
        objects.remove()
    made = [corpus.prefix for corpus in outcome.corpora]
    print_result(communicator.rank, outcome, made, as_json=as_json)


@with_options
def mock_command(
    out: Annotated[
        Path, typer.Option("--out", "-o", callback=path_only, help="Directory for the corpora.")
    ],
    mock: Mock,
    threads: ThreadsOption = 0,
    log_format: LogOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Make up corpora and a blend of them, for tests of infrastructure.

    Sizes of corpora and lengths of documents are those of real data; the tokens are zeros that
    take no space, or random. DIR/blend.json is a configuration for all of them.

    Examples
    --------
        distcache mock --documents 2e7 --count 800 --out /scratch/mock

        distcache build /scratch/mock/blend.json -o /scratch/caches
    """
    directory = out.absolute()
    threads = threads or threads_of(usable_cores(), 1)
    with make_progress(log_format) as progress:
        made = write_mock(mock, directory, threads, progress)
        blend = directory / BLEND
        text, left_out = _blend(made)
        with atomic_write(blend) as stream:
            stream.write(text.encode("utf-8"))
        if left_out:
            these = ", ".join(left_out[:MAX_NAMED]) + (", ..." if left_out[MAX_NAMED:] else "")
            many = counted(len(left_out), "corpus is", "corpora are")
            progress.note(f"{many} too short for a sample, and left out of {BLEND}: {these}")
    if as_json:
        document = {"blend": str(blend), "tokens": sum(made.tokens)}
        print_json(document | {"corpora": made.prefixes, "left_out": left_out})
    else:
        typer.echo(str(blend))


def _blend(made: MockCorpora) -> tuple[str, list[str]]:
    """Return a configuration that draws each corpus about once, and the corpora that it has not."""
    if min(made.documents) < FEW_DOCUMENTS:  # some splits and shares would be empty
        length = max(2, min(64, min(made.tokens) - 1))  # a sample of each corpus, if it can be
        long = [
            prefix
            for prefix, tokens in zip(made.prefixes, made.tokens, strict=True)
            if tokens > length
        ] or list(made.prefixes)
        document: dict[str, Any] = {"sequence_length": length, "split": "1,0,0"}
        text = json.dumps(document | {"blend": long}, indent=1) + "\n"
        return text, sorted(set(made.prefixes).difference(long))
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
    return json.dumps(document, indent=1) + "\n", []
