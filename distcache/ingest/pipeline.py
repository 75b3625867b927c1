"""The steps of an ingest, from files to published corpora."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import itertools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec
import xxhash

from distcache import __version__
from distcache.corpus.corpus import CorpusFacts
from distcache.corpus.examine import digest_tokens
from distcache.corpus.idx import limit_of, named_type
from distcache.corpus.receipt import Kind, Origin, Receipt, TokenizerFacts, receipt_path
from distcache.errors import ConfigError, CorpusError
from distcache.extras import needing
from distcache.ingest.completion import count_intact, make_corpora
from distcache.ingest.ingest_work import Reader, Work
from distcache.ingest.inputs import Input, TextOptions, TokenOptions, find_inputs, require_unchanged
from distcache.ingest.output import Links, Output
from distcache.ingest.pieces import PieceRecord, make_pieces, owners_of, piece_bytes
from distcache.ingest.readers.text import TextReader, make_text_reader
from distcache.ingest.receipts import make_receipts
from distcache.ingest.rounds import run_rounds
from distcache.ingest.token_store import TokenStore
from distcache.ingest.tokenizers.find import find_tokenizer
from distcache.ingest.tokenizers.tokenizer import (
    TokenizerOptions,
    TokenizerSource,
    template_digest,
)
from distcache.ranks.agreement import aborting_on_error, on_all_ranks, on_rank_0, own_share, spread
from distcache.ranks.communicator import Communicator
from distcache.ranks.progress import NullProgress, Progress, Stopwatch
from distcache.storage.files import require_text
from distcache.storage.journal import Journal, read_journal
from distcache.storage.units import counted

ARROW_CODECS: Final = ("gzip", "zstd")  # Arrow decompresses them

IngestOptions = TextOptions | TokenOptions


class MadeCorpus(msgspec.Struct, frozen=True):
    """A finished corpus, and its receipt."""

    prefix: str
    receipt: str
    documents: int
    sequences: int
    tokens: int


class IngestOutcome(msgspec.Struct, frozen=True):
    """The result of an ingest."""

    corpora: list[MadeCorpus]  # corpora in order
    reused: bool  # whether they existed, made from the same
    resumed: float  # share of the pieces that an earlier run has done
    # Counts of all inputs. Empty rows are dropped, and rows with an error are skipped, if asked
    # for.
    rows: int
    documents: int
    empty: int
    skipped: int
    tokens: int


def ingest(
    communicator: Communicator,
    words: Sequence[str],
    out: str,
    options: IngestOptions,
    tokenizer: TokenizerOptions | None = None,
    threads: int = 1,
    progress: Progress | None = None,
    names: Mapping[str, str] = MappingProxyType({}),
) -> IngestOutcome:
    """Make corpora from files, unless they exist. Collective.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks. Their number changes no byte.
    words : sequence of str
        Files, patterns and directories.
    out : str
        Prefix of the corpus, or of the corpora with a shard size.
    options : TextOptions or TokenOptions
        Kind and columns of the inputs, and how to read them.
    tokenizer : TokenizerOptions or None
        Tokenizer of text.
    threads : int
        Workers of each rank.
    progress : Progress or None
        Receives the progress of rank 0.
    names : mapping of str to str
        Names of what files are copies of, by their paths, for receipts.

    Raises
    ------
    DistcacheError
        On all ranks the same. Nothing has a final name then; finished work is kept, and running
        again resumes.
    """
    watch = Stopwatch(progress or NullProgress(), lambda: communicator.waited)
    if isinstance(options, TextOptions) and not options.append_eod:
        watch.note(
            "warning: documents will not end with an end-of-document token, which most models "
            "need; give --append-eod or --eod TOKEN"
        )
    if isinstance(options, TokenOptions) and options.eod is None and options.vocabulary is None:
        watch.note(
            "warning: neither --eod nor --vocab-size is given: documents get no end token, and no "
            "token is compared with a vocabulary"
        )
    with aborting_on_error(communicator):
        on_rank_0(
            communicator,
            lambda: require_options(out, options, tokenizer),
            None,
            "reading options",
        )
        watch.phase("listing inputs")
        inputs = agree_on_inputs(communicator, words, options, names)
        output = Output(out, numbered=options.shard_size is not None)
        work, origin = agree_on_work(communicator, inputs, options, tokenizer, output)
        if isinstance(work.reader, TextReader):
            watch.note(f"tokenizing with {work.reader.engine}")
            if work.reader.ending is not None:
                watch.note(f"each document ends with token {work.reader.ending}")
        resumed = [0.0]

        def make() -> tuple[list[Receipt], dict[int, Links]]:
            with contextlib.closing(work.store):
                receipts, share = _make(communicator, work, origin, options, threads, watch)
            resumed.append(share)
            ended = sum(record.facts.ended for record in work.records)
            if ended and isinstance(options, TextOptions) and not options.eod_once:
                watch.note(
                    f"warning: {ended:,} documents end with two end-of-document tokens, because "
                    "their texts end with one; --eod-once appends none to them"
                )
            return receipts, {}

        receipts, existed = output.produce(communicator, origin, watch, make, resumes=True)
        return _outcome(output, receipts, resumed=resumed[-1], reused=existed)


def _make(
    communicator: Communicator,
    work: Work,
    origin: Origin,
    options: IngestOptions,
    threads: int,
    progress: Stopwatch,
) -> tuple[list[Receipt], float]:
    """Ingest into a claimed output. Collective.

    Returns
    -------
    list of Receipt
        Receipts of the corpora.
    float
        Share of the pieces that an earlier run had done.
    """
    output = work.store.output
    progress.phase("looking for an earlier run")
    done = resume_on_all(communicator, work)
    progress.phase("reading inputs", work.bytes_of(range(len(work.pieces))))
    progress.advance(work.bytes_of(range(done)))
    with contextlib.ExitStack() as stack:
        journal = on_all_ranks(
            communicator,
            lambda: Journal(output.journal, work.records) if communicator.rank == 0 else None,
            "opening the journal",
        )
        if journal is not None:
            stack.enter_context(journal)
        work.owners = owners_of(work.costs(), done, communicator.size)
        run_rounds(communicator, work, journal, threads, progress)
        own = own_share(communicator, work.inputs)
        on_all_ranks(communicator, lambda: require_unchanged(own), "comparing inputs")
        if not any(record.facts.documents for record in work.records):
            raise CorpusError(
                "no input has a document with a token: there is nothing to write"
            ).of_all_ranks()  # all ranks have all records
        facts = make_corpora(communicator, work, threads, progress)
        digests = [
            digest_tokens(communicator, output.unfinished(shard), entry.bin_size)
            for shard, entry in enumerate(facts)
        ]
    _note_losses(facts, options, progress)
    return make_receipts(work, facts, digests, origin), done / len(work.pieces)


def _note_losses(facts: Sequence[CorpusFacts], options: IngestOptions, progress: Stopwatch) -> None:
    """Say how many tokens have a loss, if corpora have masks."""
    losses = [corpus.loss for corpus in facts if corpus.loss is not None]
    if not losses:
        return
    why = "the masks beside them (loss_mask, labels and the like)"
    if isinstance(options, TextOptions):
        why = "what the chat template encloses in {% generation %}"
    some, whole = sum(loss.tokens for loss in losses), sum(corpus.tokens for corpus in facts)
    progress.note(f"{some:,} of {whole:,} tokens have a loss, by {why}")
    if silent := sum(loss.silent for loss in losses):
        progress.note(f"{counted(silent, 'sequence has', 'sequences have')} no token with a loss")


def _outcome(
    output: Output, receipts: Sequence[Receipt], *, resumed: float, reused: bool
) -> IngestOutcome:
    inputs = [entry for receipt in receipts for entry in receipt.inputs]
    return IngestOutcome(
        corpora=[
            MadeCorpus(
                output.final(shard),
                receipt_path(output.final(shard)),
                receipt.documents,
                receipt.sequences,
                receipt.tokens,
            )
            for shard, receipt in enumerate(receipts)
        ],
        reused=reused,
        resumed=resumed,
        rows=sum(entry.rows for entry in inputs),
        documents=sum(receipt.documents for receipt in receipts),
        empty=sum(entry.empty for entry in inputs),
        skipped=sum(entry.skipped for entry in inputs),
        tokens=sum(receipt.tokens for receipt in receipts),
    )


def require_options(out: str, options: IngestOptions, tokenizer: TokenizerOptions | None) -> None:
    """Refuse names that a receipt cannot represent, and options without effect.

    Raises
    ------
    ConfigError
        Naming the option.
    """
    if tokenizer is not None and isinstance(options, TextOptions):
        _require_effect(options, tokenizer)
    given = [out, *msgspec.structs.asdict(options).values()]
    given += msgspec.structs.asdict(tokenizer).values() if tokenizer is not None else []
    require_text(*(value for value in given if isinstance(value, str)))


def _require_effect(options: TextOptions, tokenizer: TokenizerOptions) -> None:
    """Refuse options of conversations for texts, and the reverse."""
    if options.messages is None:
        for_chats = {
            "--chat-template": tokenizer.chat_template is not None,
            "--loss": options.loss != "marked",
        }
        if given := [name for name, is_given in for_chats.items() if is_given]:
            raise ConfigError(f"{', '.join(given)}: needs --messages FIELD")
        return
    for_texts = {
        "--text-key": options.text_key != "text",
        "--split-sentences": options.sentences != "no",
        "--txt-documents": options.documents != "file",
        "--format txt": options.format == "txt",
        "--add-special-tokens": tokenizer.special_tokens is not None,
        "--engine gigatoken": tokenizer.engine == "gigatoken",
    }
    if given := [name for name, is_given in for_texts.items() if is_given]:
        raise ConfigError(
            f"{', '.join(given)}: applies to texts, not to the conversations of --messages, whose "
            "text the chat template makes, and the library tokenizers encodes"
        )


def agree_on_inputs(
    communicator: Communicator,
    words: Sequence[str],
    options: IngestOptions,
    names: Mapping[str, str],
) -> list[Input]:
    """Find the inputs, and the row groups of Parquet files. Collective.

    Raises
    ------
    NotReady, ConfigError
        As `find_inputs`.
    CorpusError
        Naming every Parquet file that is damaged, or lacks the column.
    """
    inputs: list[Input] = on_rank_0(
        communicator,
        lambda: find_inputs(words, options.formats, options.format, names),
        list[Input],
        "listing inputs",
    )

    def inspect(own: Sequence[Input]) -> list[Input]:
        _require_arrow(inputs)  # for those that this rank will read
        found: list[Input] = []
        problems: list[str] = []
        for entry in own:
            try:
                found.append(_inspect(entry, options))
            except CorpusError as error:
                problems += error.problems
            except UnicodeDecodeError:
                problems.append(f"{entry.path}: has a column whose name is not UTF-8")
        if problems:
            raise CorpusError(*problems)
        return found

    return spread(communicator, inputs, inspect, Input, "opening inputs")


def _require_arrow(inputs: Sequence[Input]) -> None:
    """Import pyarrow for inputs that need it, and refuse them if it is missing.

    Here, since the threads of an ingest end before the process does: Arrow's allocator crashes
    if such a thread is the first to use it (apache/arrow issues 50471 and 50908).
    """
    if any(entry.is_table or entry.compression in ARROW_CODECS for entry in inputs):
        with needing():
            importlib.import_module("pyarrow")


def _inspect(entry: Input, options: IngestOptions) -> Input:
    if not entry.is_table:
        return entry
    from distcache.ingest.readers.tables import require_text_column, with_groups  # noqa: PLC0415

    if isinstance(options, TextOptions):
        require_text_column(entry, options)
        return with_groups(entry, options.field)
    from distcache.ingest.readers.token_shards import require_token_column  # noqa: PLC0415

    require_token_column(entry, options)
    return with_groups(entry, options.column)


def agree_on_work(
    communicator: Communicator,
    inputs: list[Input],
    options: IngestOptions,
    tokenizer: TokenizerOptions | None,
    output: Output,
) -> tuple[Work, Origin]:
    """Determine everything that the corpus depends on. Collective.

    Only rank 0 reads or downloads the tokenizer.

    Raises
    ------
    DistcacheError
        If the tokenizer cannot be loaded, an option is invalid, or libraries of ranks differ.
    """
    source = None
    if tokenizer is not None:
        source = on_rank_0(
            communicator,
            lambda: find_tokenizer(tokenizer),
            TokenizerSource,
            "reading the tokenizer",
        )
    work, origin = on_all_ranks(
        communicator,
        lambda: make_work(inputs, options, tokenizer, source, output),
        "loading the tokenizer",
    )
    _require_same(communicator, origin)
    return work, origin


def make_work(
    inputs: list[Input],
    options: IngestOptions,
    tokenizer: TokenizerOptions | None,
    source: TokenizerSource | None,
    output: Output,
) -> tuple[Work, Origin]:
    """Determine everything that the corpus depends on.

    Raises
    ------
    DistcacheError
        If the tokenizer cannot be loaded, or an option is invalid.
    """
    reader: Reader
    facts: TokenizerFacts | None = None
    libraries: Sequence[str] = ("pyarrow",)
    if isinstance(options, TextOptions):
        assert tokenizer is not None, "text needs a tokenizer"
        assert source is not None, "text needs a tokenizer"
        reader = make_text_reader(source, tokenizer, options)
        facts, libraries = reader.tokenizer.facts, reader.tokenizer.libraries
    else:
        from distcache.ingest.readers.token_shards import ShardReader  # noqa: PLC0415

        reader = ShardReader(options)
    vocabulary = facts.vocabulary if facts is not None else getattr(options, "vocabulary", None)
    dtype = named_type(options.token_type, vocabulary)
    end = getattr(options, "eod", None)
    if end is not None and end >= limit_of(dtype, vocabulary):
        raise ConfigError(f"--eod {end}: is not in the vocabulary, or beyond the token type")
    step = piece_bytes(inputs)
    lines = not isinstance(options, TextOptions) or options.documents == "line"
    work = Work(
        inputs,
        make_pieces(inputs, step, lines=lines),
        reader,
        TokenStore(output, dtype),
        may_spool=isinstance(options, TextOptions),
        limit=options.shard_size,
        fail=options.on_error == "fail",
    )
    chosen: dict[str, Any] = msgspec.to_builtins(options) | {"piece_bytes": step}
    if source is not None and getattr(options, "messages", None) is not None:
        chosen["template_digest"] = template_digest(source)
    return work, _origin(inputs, options, chosen, tokenizer, facts, libraries)


def _origin(
    inputs: Sequence[Input],
    options: IngestOptions,
    chosen: dict[str, Any],
    tokenizer: TokenizerOptions | None,
    facts: TokenizerFacts | None,
    libraries: Sequence[str],
) -> Origin:
    kind: Kind = "text" if isinstance(options, TextOptions) else "tokens"
    named = {} if tokenizer is None else {"tokenizer": msgspec.to_builtins(tokenizer)}
    versions = {name: importlib.metadata.version(name) for name in libraries}
    versions["distcache"] = __version__
    known = [msgspec.structs.replace(entry, path=entry.name, named="") for entry in inputs]
    identity = [kind, known, chosen, facts, versions]
    return Origin(
        kind=kind,
        made_from=xxhash.xxh3_128(msgspec.json.encode(identity)).hexdigest(),
        tokenizer=facts,
        options=chosen | named,
        versions=versions,
    )


def _require_same(communicator: Communicator, origin: Origin) -> None:
    """Refuse ranks that would make different tokens. Collective.

    Raises
    ------
    ConfigError
        If tokenizers or versions of libraries differ.
    """
    everyone = communicator.allgather(origin, Origin, "what ranks have")
    different = [
        f"rank {rank}: {found.tokenizer}, versions {found.versions}"
        for rank, found in enumerate(everyone)
        if found.made_from != everyone[0].made_from
    ]
    if different:
        first = f"rank 0: {everyone[0].tokenizer}, versions {everyone[0].versions}"
        raise ConfigError(
            "ranks have different tokenizers or libraries", first, *different
        ).of_all_ranks()  # all ranks have all of them


def resume_on_all(communicator: Communicator, work: Work) -> int:
    """Take up the records of an earlier run, as far as they are intact. Collective.

    Returns
    -------
    int
        Number of pieces that need not run again.
    """

    def read() -> list[PieceRecord]:
        """Return the records of the first pieces, up to one that is missing."""
        journal = enumerate(read_journal(work.store.output.journal, PieceRecord))
        known = itertools.takewhile(
            lambda entry: entry[0] == entry[1].piece and bool(entry[1].segments), journal
        )
        return [record for _, record in itertools.islice(known, len(work.pieces))]

    work.records = on_rank_0(communicator, read, list[PieceRecord], "the journal")
    work.owners = [piece % communicator.size for piece in range(len(work.pieces))]
    del work.records[count_intact(communicator, work) :]
    return len(work.records)
