"""`distcache ingest text` and `tokens`, and `mock`, which makes corpora up."""

from __future__ import annotations

import contextlib
import ctypes
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import click
import typer

from distcache.cli.common import (
    WORK,
    JsonOption,
    LogOption,
    OutOption,
    ThreadsOption,
    WorkOption,
    interrupt_on_signals,
    optional_size,
    path_only,
)
from distcache.cli.show import LogFormat, make_progress, print_json, print_result
from distcache.corpus.mock import Mock, MockCorpora, write_mock
from distcache.errors import ConfigError
from distcache.ingest.readers.formats import TEXT_FORMATS, TOKEN_FORMATS
from distcache.megatron.tokenizers import one_release
from distcache.ranks.connect import connect
from distcache.ranks.cores import share_of_cores, threads_of, usable_cores
from distcache.storage.files import atomic_write
from distcache.storage.units import counted, parse_size

if TYPE_CHECKING:
    from distcache.ingest.pipeline import IngestOptions, IngestOutcome
    from distcache.ingest.tokenizers.tokenizer import TokenizerOptions

ingest_app = typer.Typer(
    name="ingest",
    help="Make corpora from text and from token shards.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
MOST_THREADS: Final = 64
M_MMAP_THRESHOLD: Final = -3  # of malloc.h
LARGE: Final = 8 << 20  # bytes

ShardOption = Annotated[
    str | None,
    typer.Option(
        "--shard-size",
        help="Begin another corpus, OUT-00001 and so on, at a document boundary before a .bin "
        "exceeds this, for example 512GB.",
    ),
]
ErrorOption = Annotated[
    Literal["fail", "skip"],
    typer.Option("--on-error", help="End at the first invalid row, or skip invalid rows."),
]
EmptyOption = Annotated[
    Literal["drop", "keep"],
    typer.Option(
        "--empty",
        help="Drop rows without tokens, or keep each as a document without sequences, as "
        "Megatron's preprocessing does.",
    ),
]
TypeOption = Annotated[
    Literal["auto", "megatron", "u8", "u16", "i32", "i64"],
    typer.Option("--token-type", help="auto is the smallest that holds the vocabulary."),
]
BLEND: Final = "blend.json"
SEQUENCE_LENGTH: Final = 4096
FEW_DOCUMENTS: Final = 200


@ingest_app.command("text")
def text_command(
    inputs: Annotated[
        list[str],
        typer.Argument(
            help="Files .txt, .jsonl (also .gz, .zst, .bz2, .xz), .parquet, .arrow; patterns; "
            "directories; - is standard input."
        ),
    ],
    tokenizer: Annotated[
        str,
        typer.Option(
            help="tokenizer.json or its directory, SentencePiece .model, .tiktoken; or a name."
        ),
    ],
    out: OutOption,
    text_key: Annotated[
        str, typer.Option(help="Field of JSON lines, or column of Parquet files.")
    ] = "text",
    append_eod: Annotated[
        bool,
        typer.Option(
            "--append-eod",
            help="End each document with the tokenizer's end-of-document token.",
        ),
    ] = False,
    eod: Annotated[
        str | None,
        typer.Option(help="End each document with this token, given as text or as a number."),
    ] = None,
    split_sentences: Annotated[
        Literal["no", "lines"],
        typer.Option(help="Whether each line of a text is a separate sequence."),
    ] = "no",
    txt_documents: Annotated[
        Literal["file", "line"],
        typer.Option(help="Whether a .txt file, or each of its lines, is a document."),
    ] = "file",
    add_special_tokens: Annotated[
        bool | None,
        typer.Option(
            "--add-special-tokens/--no-add-special-tokens",
            help="Add the tokens that the model expects around a text.",
            show_default="as Megatron does; see --megatron",
        ),
    ] = None,
    megatron: Annotated[
        str | None,
        typer.Option(
            help="Release whose preprocessing is followed: since 0.17, Hugging Face's tokenizers "
            "add special tokens by default.",
            show_default="0.16",
        ),
    ] = None,
    tiktoken_pattern: Annotated[
        str | None,
        typer.Option(help="Regular expression of a .tiktoken file; v1 and v2 are Megatron's."),
    ] = None,
    special_text: Annotated[
        Literal["parse", "text"],
        typer.Option(
            help="Whether, with tiktoken, the text of a special token in a document becomes that "
            "token, as in Megatron, or stays text."
        ),
    ] = "parse",
    engine: Annotated[
        Literal["auto", "gigatoken", "tokenizers"],
        typer.Option(
            help="Engine for tokenizers of Hugging Face. All make equal tokens; gigatoken is "
            "faster, and auto takes it if it has what the tokenizer needs."
        ),
    ] = "auto",
    max_document_size: Annotated[
        str, typer.Option(help="A longer document is an error: tokenizers need much more memory.")
    ] = "64M",
    token_type: TypeOption = "auto",
    shard_size: ShardOption = None,
    on_error: ErrorOption = "fail",
    empty: EmptyOption = "drop",
    format: Annotated[  # noqa: A002  the option's name
        str | None,
        typer.Option(
            click_type=click.Choice(TEXT_FORMATS),
            help="Format of all files, whatever their names; suffixes .gz, .zst, .bz2 and .xz of "
            "lines still count.",
            show_default="from each name",
        ),
    ] = None,
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

        zcat wiki.gz | distcache ingest text - --format jsonl --tokenizer gpt2/ -o wiki
    """
    from distcache.ingest.inputs import TextOptions  # noqa: PLC0415
    from distcache.ingest.tokenizers.tokenizer import TokenizerOptions  # noqa: PLC0415

    options = TextOptions(
        text_key=text_key,
        append_eod=append_eod or eod is not None,
        sentences=split_sentences,
        documents=txt_documents,
        longest=parse_size(max_document_size, least=1),
        token_type=token_type,
        on_error=on_error,
        shard_size=optional_size(shard_size),
        empty=empty,
        format=format,
    )
    release = None if megatron is None else one_release(megatron)
    _return_large_buffers()
    chosen = TokenizerOptions(
        tokenizer, eod, add_special_tokens, tiktoken_pattern, special_text, release, engine
    )
    _run(inputs, out, options, chosen, threads, log_format, as_json, work)


@ingest_app.command("tokens")
def tokens_command(
    inputs: Annotated[
        list[str],
        typer.Argument(
            help="Files .parquet, .arrow, .jsonl, .npy, .ds; patterns; directories; - is standard "
            "input."
        ),
    ],
    out: OutOption,
    column: Annotated[
        str, typer.Option(help="Column or field of token ids, lists of integers.")
    ] = "input_ids",
    format: Annotated[  # noqa: A002  the option's name
        str | None,
        typer.Option(
            click_type=click.Choice(TOKEN_FORMATS),
            help="Format of all files, whatever their names; raw are arrays of ids.",
            show_default="from each name",
        ),
    ] = None,
    dtype: Annotated[
        Literal["uint8", "uint16", "uint32", "int32", "int64"] | None,
        typer.Option(
            help="Type of arrays without a header. Their documents end where NAME.index says, or "
            "at each --eod."
        ),
    ] = None,
    vocab_size: Annotated[
        int | None, typer.Option(min=1, help="Token ids must be below it; sets the token type.")
    ] = None,
    eod: Annotated[
        int | None, typer.Option(min=0, help="End each document with this token, if it does not.")
    ] = None,
    length_column: Annotated[
        str, typer.Option(help="Number of tokens of a row, compared where it exists.")
    ] = "length",
    document_column: Annotated[
        str, typer.Option(help="Id of a row's document; consecutive rows must differ.")
    ] = "document_id",
    token_type: TypeOption = "auto",
    shard_size: ShardOption = None,
    on_error: ErrorOption = "fail",
    empty: EmptyOption = "drop",
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
    from distcache.ingest.inputs import TokenOptions  # noqa: PLC0415

    options = TokenOptions(
        column=column,
        format=format,
        dtype=dtype,
        vocabulary=vocab_size,
        eod=eod,
        length_column=length_column,
        document_column=document_column,
        token_type=token_type,
        on_error=on_error,
        shard_size=optional_size(shard_size),
        empty=empty,
    )
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
    from distcache.ingest.inputs import suffixes_of  # noqa: PLC0415
    from distcache.ingest.objects import ObjectWork, is_stream  # noqa: PLC0415
    from distcache.ingest.pipeline import ingest  # noqa: PLC0415

    formats = TOKEN_FORMATS if tokenizer is None else TEXT_FORMATS
    known = suffixes_of(formats, options.format)
    if options.format is None and any(map(is_stream, inputs)):
        raise ConfigError("standard input and pipes have no name: give --format")
    communicator = connect()
    interrupt_on_signals()
    threads = threads or share_of_cores(communicator, MOST_THREADS)
    with make_progress(log_format, communicator.rank) as progress:
        objects = ObjectWork(communicator, work, [*inputs, out], progress)
        found, local = objects.inputs(inputs, known), objects.output(out)
        outcome = ingest(communicator, found, local, options, tokenizer, threads, progress)
        progress.note(_summary(outcome))
        made = objects.publish([corpus.prefix for corpus in outcome.corpora], out, threads)
    print_result(communicator.rank, outcome, made, as_json=as_json)


def _return_large_buffers() -> None:
    """Fix the size from which freed memory returns to the system at once (mallopt(3)).

    Otherwise it grows with the largest text, and each thread's heap keeps what that has taken.
    """
    with contextlib.suppress(AttributeError):  # glibc has it
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE)


def _summary(outcome: IngestOutcome) -> str:
    done = "found" if outcome.reused else "wrote"
    corpora = counted(len(outcome.corpora), "corpus", "corpora")
    return (
        f"{done} {corpora}: {outcome.documents:,} documents, "
        f"{outcome.tokens:,} tokens; of {outcome.rows:,} rows {outcome.empty:,} were empty and "
        f"{outcome.skipped:,} were skipped"
    )


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
