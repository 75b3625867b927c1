"""What comes before the rounds: inputs, the reader, the pieces, and the right to write."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import xxhash

from distcache.corpus.output import Output
from distcache.corpus.receipt import Kind, Origin, TokenizerFacts
from distcache.corpus.token_types import limit_of, named_type
from distcache.errors import ConfigError, CorpusError
from distcache.files import require_text
from distcache.ingest.encode import TextReader
from distcache.ingest.finish import count_intact
from distcache.ingest.inputs import Format, Input, find_inputs
from distcache.ingest.journal import read_journal
from distcache.ingest.options import TextOptions, TokenOptions
from distcache.ingest.parquet import with_groups
from distcache.ingest.pieces import make_pieces, make_tasks, piece_bytes
from distcache.ingest.placing import TaskRecord
from distcache.ingest.rows import require_text_column
from distcache.ingest.store import Store
from distcache.ingest.token_shards import ShardReader, require_token_column
from distcache.ingest.tokenizer import (
    TokenizerOptions,
    TokenizerSource,
    find_tokenizer,
    make_tokenizer,
)
from distcache.ingest.workers import Reader, Work
from distcache.ranks.agreement import from_rank_0, together
from distcache.ranks.communicator import Communicator

__all__ = [
    "Options",
    "find_together",
    "make_work_together",
    "require_utf8",
    "resume_together",
]

Options = TextOptions | TokenOptions

LIBRARIES: Final = {"huggingface": "tokenizers", "sentencepiece": "sentencepiece"}


def require_utf8(out: str, options: Options, tokenizer: TokenizerOptions | None) -> None:
    """Refuse names that cannot stand in a receipt.

    Raises
    ------
    ConfigError
        If one is not UTF-8.
    """
    given = [out, *msgspec.structs.asdict(options).values()]
    given += msgspec.structs.asdict(tokenizer).values() if tokenizer is not None else []
    for value in given:
        if isinstance(value, str):
            require_text(value)


def find_together(
    communicator: Communicator, words: Sequence[str], options: Options
) -> list[Input]:
    """Find the inputs, and what is in Parquet files. Collective.

    Raises
    ------
    NotReady, ConfigError
        As `find_inputs`.
    CorpusError
        Naming every Parquet file that is damaged, or has not the column that is wanted.
    """
    formats: list[Format] = (
        ["jsonl", "txt", "parquet"] if isinstance(options, TextOptions) else ["parquet"]
    )
    inputs: list[Input] = from_rank_0(
        communicator, lambda: find_inputs(words, formats), list[Input], "listing inputs"
    )
    size = communicator.size
    own = inputs[communicator.rank :: size]
    looked = together(communicator, lambda: _look_all(own, options), "opening inputs")
    shares = communicator.gather_all(looked, list[Input], "row groups of inputs")
    return [shares[index % size][index // size] for index in range(len(inputs))]


def _look_all(inputs: Sequence[Input], options: Options) -> list[Input]:
    found: list[Input] = []
    problems: list[str] = []
    for entry in inputs:
        try:
            found.append(_look_into(entry, options))
        except CorpusError as error:
            problems += error.problems
        except UnicodeDecodeError:
            problems.append(f"{entry.path}: has a column whose name is not UTF-8")
    if problems:
        raise CorpusError(*problems)
    return found


def _look_into(entry: Input, options: Options) -> Input:
    if entry.format != "parquet":
        return entry
    if isinstance(options, TextOptions):
        require_text_column(entry, options)
        return with_groups(entry, options.text_key)
    require_token_column(entry, options)
    return with_groups(entry, options.column)


def make_work_together(
    communicator: Communicator,
    inputs: list[Input],
    options: Options,
    tokenizer: TokenizerOptions | None,
    output: Output,
) -> tuple[Work, Origin]:
    """Decide all that the corpus depends on. Collective.

    The tokenizer is read, or got from the network, by rank 0 alone.

    Raises
    ------
    DistcacheError
        If the tokenizer cannot be loaded, an option does not fit, or ranks have other libraries.
    """
    source = None
    if tokenizer is not None:
        source = from_rank_0(
            communicator,
            lambda: find_tokenizer(tokenizer),
            TokenizerSource,
            "reading the tokenizer",
        )
    work, origin = together(
        communicator,
        lambda: make_work(inputs, options, tokenizer, source, output),
        "loading the tokenizer",
    )
    _require_same(communicator, origin)
    return work, origin


def make_work(
    inputs: list[Input],
    options: Options,
    tokenizer: TokenizerOptions | None,
    source: TokenizerSource | None,
    output: Output,
) -> tuple[Work, Origin]:
    """Decide all that the corpus depends on.

    Raises
    ------
    DistcacheError
        If the tokenizer cannot be loaded, or an option does not fit.
    """
    reader: Reader
    facts: TokenizerFacts | None = None
    if isinstance(options, TextOptions):
        assert tokenizer is not None, "text needs a tokenizer"
        assert source is not None, "text needs a tokenizer"
        loaded = make_tokenizer(source, tokenizer)
        facts = loaded.facts
        reader = TextReader(loaded, options)
    else:
        reader = ShardReader(options)
    vocabulary = facts.vocabulary if facts is not None else getattr(options, "vocabulary", None)
    dtype = named_type(options.token_type, vocabulary)
    end = getattr(options, "eod", None)
    if end is not None and end >= limit_of(dtype, vocabulary):
        raise ConfigError(f"--eod {end}: is not in the vocabulary, or beyond the token type")
    step = piece_bytes(inputs)
    lines = not isinstance(options, TextOptions) or options.documents == "line"
    pieces = make_pieces(inputs, step, lines=lines)
    work = Work(
        inputs,
        pieces,
        make_tasks(pieces, step),
        reader,
        Store(output, dtype),
        spools=isinstance(options, TextOptions),
        limit=options.shard_size,
        fail=options.on_error == "fail",
    )
    return work, _origin(inputs, options, tokenizer, facts, step)


def _origin(
    inputs: Sequence[Input],
    options: Options,
    tokenizer: TokenizerOptions | None,
    facts: TokenizerFacts | None,
    step: int,
) -> Origin:
    kind: Kind = "text" if isinstance(options, TextOptions) else "tokens"
    chosen: dict[str, Any] = msgspec.to_builtins(options) | {"piece_bytes": step}
    named = {} if tokenizer is None else {"tokenizer": msgspec.to_builtins(tokenizer)}
    library = "pyarrow" if facts is None else LIBRARIES.get(facts.kind, facts.kind)
    versions = {name: importlib.metadata.version(name) for name in ("distcache", library)}
    identity = [kind, inputs, chosen, facts, versions]
    return Origin(
        kind=kind,
        made_from=xxhash.xxh3_128(msgspec.json.encode(identity)).hexdigest(),
        tokenizer=facts,
        options=chosen | named,
        versions=versions,
    )


def _require_same(communicator: Communicator, origin: Origin) -> None:
    """Refuse ranks that would not make the same tokens. Collective.

    Raises
    ------
    ConfigError
        If they have different tokenizers, or versions of a library.
    """
    everyone = communicator.gather_all(origin, Origin, "what ranks have")
    different = [
        f"rank {rank}: {found.tokenizer}, versions {found.versions}"
        for rank, found in enumerate(everyone)
        if found.made_from != everyone[0].made_from
    ]
    if different:
        first = f"rank 0: {everyone[0].tokenizer}, versions {everyone[0].versions}"
        error = ConfigError("ranks have different tokenizers or libraries", first, *different)
        error.agreed = True  # all ranks have all of them
        raise error


def resume_together(
    communicator: Communicator, output: Output, store: Store, tasks: list[range]
) -> list[TaskRecord]:
    """Return the records of tasks that an earlier run has done, as far as they hold. Collective."""
    known = from_rank_0(
        communicator, lambda: read_journal(output.journal, tasks), list[TaskRecord], "the journal"
    )
    owners = [task % communicator.size for task in range(len(tasks))]
    return known[: count_intact(communicator, store, known, owners)]
