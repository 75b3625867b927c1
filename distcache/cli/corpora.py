"""`distcache check`, `show`, `merge`, `convert`, `select` and `materialize`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import typer

from distcache.cli.common import (
    WORK,
    CorporaArgument,
    CorpusArgument,
    JsonOption,
    LogOption,
    OutOption,
    WorkOption,
    bare_prefix,
    complete_corpora,
    interrupt_on_signals,
)
from distcache.cli.options import with_options
from distcache.cli.show import LogFormat, make_progress, print_json, print_records, print_result
from distcache.corpus import CorpusFacts, Fault, bin_path
from distcache.corpus.examine import examine, require_sound
from distcache.corpus.fetched import fetched_indices
from distcache.corpus.receipt import Receipt, find_receipt, receipt_path
from distcache.corpus.repair import is_repairable
from distcache.corpus.sampled_tokens import negative_token
from distcache.edit.copy_corpora import copy_corpora, repair
from distcache.edit.mask import write_mask
from distcache.edit.select import SelectOptions, select
from distcache.edit.selection import Selection
from distcache.errors import ConfigError, CorpusError, NotReady
from distcache.extras import needing
from distcache.ingest.objects import ObjectWork
from distcache.plan.config import MAX_MULTIPLE
from distcache.ranks.agreement import on_rank_0, spread
from distcache.ranks.communicator import Communicator, SerialCommunicator
from distcache.ranks.connect import connect
from distcache.ranks.job_environment import share_of_cores
from distcache.ranks.progress import Progress
from distcache.storage.files import require_text
from distcache.storage.threads import map_in_threads
from distcache.storage.units import counted
from distcache.storage.url import path_only

LOOKED_AT = 16  # sequences of each corpus whose tokens are looked at
MAX_SHOWN_TOKENS = 64


def fold(words: Sequence[str]) -> list[str]:
    """Return the named corpora; several files name one corpus, the same argument twice two."""
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
    prefixes: CorporaArgument,
    out: OutOption,
    mixed_tokenizers: Annotated[
        bool, typer.Option("--mixed-tokenizers", help="Allow corpora of different tokenizers.")
    ] = False,
    work: WorkOption = WORK,
    log_format: LogOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Merge corpora into one, in this order, as Megatron's own merge does.

    Runs alone or under mpiexec or srun; the bytes are split over the ranks.

    Examples
    --------
        distcache merge data/web-00000 data/web-00001 -o data/web

        mpiexec -n 8 distcache merge data/part-* -o data/all
    """

    def make(communicator: Communicator, threads: int, progress: Progress) -> Receipt:
        objects = ObjectWork(communicator, work, [*prefixes, out], progress)
        unique = objects.corpora(fold(prefixes))
        with objects.naming():
            receipt = copy_corpora(
                communicator,
                unique,
                out,
                threads,
                progress,
                mixed=mixed_tokenizers,
                names=objects.names,
            )
        objects.remove()
        return receipt

    write_corpus(make, out, log_format, as_json=as_json)


def convert_command(
    prefix: CorpusArgument,
    out: OutOption,
    drop_modes: Annotated[
        bool, typer.Option("--drop-modes", help="Drop the modes of multimodal data.")
    ] = False,
    overflowed: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Make offsets that overflowed again, of the lengths.",
        ),
    ] = False,
    log_format: LogOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Write a multimodal or damaged corpus as one that today's Megatron reads.

    Examples
    --------
        distcache convert data/pictures -o data/text-only --drop-modes

        distcache convert data/merged -o data/mended --repair
    """

    def make(communicator: Communicator, threads: int, progress: Progress) -> Receipt:
        source = bare_prefix(prefix)
        if overflowed:
            return repair(communicator, source, out, threads, progress, drop_modes=drop_modes)
        return copy_corpora(
            communicator,
            [source],
            out,
            threads,
            progress,
            kind="convert",
            drop_modes=drop_modes,
        )

    write_corpus(make, out, log_format, as_json=as_json)


@with_options
def select_command(
    corpus: CorpusArgument,
    out: OutOption,
    selection: Selection,
    options: SelectOptions,
    log_format: LogOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Select documents of a corpus as a view: a new .idx, and a link to the same .bin.

    A document is kept if every condition that is given holds. Runs alone or under mpiexec or srun;
    the documents are split over the ranks.

    Examples
    --------
        distcache select data/web -o data/web-tenth --sample 0.1

        distcache select data/web -o data/web-1b --sample-tokens 1e9 --seed 7

        distcache select data/web -o data/web-clean --drop duplicates.npy --min-length 64
    """
    options = msgspec.structs.replace(options, selection=selection)

    def make(communicator: Communicator, threads: int, progress: Progress) -> Receipt:
        return select(communicator, bare_prefix(corpus), out, options, threads, progress)

    write_corpus(make, out, log_format, as_json=as_json)


def materialize_command(
    corpus: Annotated[
        str,
        typer.Argument(
            callback=path_only,
            autocompletion=complete_corpora,
            help="Path of a corpus, a view or MDS shards.",
        ),
    ],
    out: OutOption,
    multiple_of: Annotated[
        int,
        typer.Option(
            min=1,
            max=MAX_MULTIPLE,
            metavar="N",
            help="Pad each sequence to a multiple of N tokens, for context parallelism.",
        ),
    ] = 1,
    eod: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="TOKEN",
            help="Token of the padding; by default the receipt's end-of-document token.",
        ),
    ] = None,
    log_format: LogOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Write the tokens of a view, or of MDS shards, as a corpus whose .bin has only them.

    Runs alone or under mpiexec or srun; the bytes are split over the ranks.

    Examples
    --------
        distcache materialize data/web-long -o fast/web-long

        mpiexec -n 8 distcache materialize corpora/mds -o fast/mds

        distcache materialize corpora/web -o corpora/web-16 --multiple-of 16
    """
    if eod is not None and multiple_of == 1:
        raise ConfigError("--eod needs --multiple-of N")

    def make(communicator: Communicator, threads: int, progress: Progress) -> Receipt:
        return copy_corpora(
            communicator,
            [bare_prefix(corpus)],
            out,
            threads,
            progress,
            kind="materialize",
            multiple_of=multiple_of,
            eod=eod,
        )

    write_corpus(make, out, log_format, as_json=as_json)


def mask_command(
    corpus: CorpusArgument,
    values: Annotated[
        Path | None,
        typer.Option(
            "--bytes",
            metavar="FILE",
            help="File with a byte for each token, 1 where there is a loss: a .loss of datatrove, "
            "or a labels_mask of OLMo-core.",
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            metavar="CORPUS",
            callback=path_only,
            help="Corpus of labels, -100 where there is no loss: a label_document of gpt-neox.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Give a corpus its loss mask, which says which tokens are learned: CORPUS.loss.

    Caches that are built from then on have the mask, and readers multiply the loss by it.

    Examples
    --------
        distcache mask corpora/chats --bytes chats.loss

        distcache mask corpora/chats_text_document --labels corpora/chats_label_document
    """
    if (values is None) == (labels is None):
        raise ConfigError("give one of --bytes and --labels")
    bare = None if labels is None else bare_prefix(labels)
    made = write_mask(bare_prefix(corpus), values=values, labels=bare)
    if as_json:
        print_json(made)
        return
    typer.echo(
        f"{made.path}: {made.tokens_with_loss:,} of {made.tokens:,} tokens have a loss; "
        f"{counted(made.silent_sequences, 'sequence')} without any"
    )


def write_corpus(
    make: Callable[[Communicator, int, Progress], Receipt],
    out: str,
    log_format: LogFormat,
    *,
    as_json: bool,
) -> None:
    """Make a corpus with all ranks, and show its receipt."""
    communicator = connect()
    interrupt_on_signals()
    with make_progress(log_format, communicator.rank) as progress:
        receipt = make(communicator, share_of_cores(communicator), progress)
    print_result(communicator.rank, receipt, [out], as_json=as_json)


def check_command(
    prefixes: CorporaArgument,
    readback: Annotated[
        int,
        typer.Option(min=0, help="Documents of each corpus to read again from their source."),
    ] = 0,
    vocab_size: Annotated[
        int | None, typer.Option(min=1, help="Token ids must be below it; reads every token.")
    ] = None,
    tokens: Annotated[
        bool,
        typer.Option(
            "--tokens",
            help="Read every token: compare the .bin with the digest of its receipt, and tokens "
            "with its vocabulary.",
        ),
    ] = False,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Tokenizer for --readback, if it is not where the receipt says."),
    ] = None,
    threads: Annotated[
        int, typer.Option("--parallel", min=1, help="Files that each rank reads at a time.")
    ] = 4,
    log_format: LogOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Check that corpora are sound, and report every fault of every corpus.

    Runs alone or under mpiexec or srun; the bytes are split over the ranks. Exit code 3 if any
    corpus is unsound, and 5 if all of those are missing. A receipt beside a corpus must belong to
    it; tokens are read with --tokens, --readback or --vocab-size only.

    Examples
    --------
        distcache check data/web data/code

        mpiexec -n 8 distcache check data/* --tokens --readback 100
    """
    unique = list(dict.fromkeys(map(bare_prefix, prefixes)))
    if readback:
        path_only(unique)  # their sources are beside them
    communicator = connect()
    interrupt_on_signals()
    on_rank_0(communicator, lambda: require_text(*unique), None, "reading names")
    reads = bool(readback or tokens or vocab_size is not None)
    with (
        make_progress(log_format, communicator.rank) as progress,
        fetched_indices(communicator, unique, progress),
    ):
        facts, faults = examine(communicator, unique, threads, progress)
        if reads:
            asked = _Asked(readback, vocab_size, tokenizer, tokens)
            faults = (*faults, *_audit(communicator, facts, asked, progress))
        else:
            faults = (*faults, *_beside(communicator, facts))
            faults = (*faults, *_negative(communicator, facts, threads))
    if communicator.rank == 0:
        wrong = {fault.prefix for fault in faults}
        sound = [found for prefix, found in facts.items() if prefix not in wrong]
        if as_json:
            print_json({"corpora": sound, "faults": faults})
        else:
            _show_findings(sound, faults)
            _show_limits(reads, readback, sound, faults)
    if faults:
        unsound = len({fault.prefix for fault in faults})
        kind = NotReady if all(fault.missing for fault in faults) else CorpusError
        what = "missing" if kind is NotReady else "unsound"
        raise kind(f"{unsound} of {len(unique)} corpora are {what}").of_all_ranks()


def _negative(
    communicator: Communicator, facts: dict[str, CorpusFacts], threads: int
) -> list[Fault]:
    """Return the corpora with negative tokens, as far as some of each show it. Collective."""
    corpora = list(facts.values())

    def look(own: list[CorpusFacts]) -> list[str | None]:
        return map_in_threads(lambda one: negative_token(one, LOOKED_AT), own, threads)

    found = spread(communicator, corpora, look, str | None, "looking at tokens")
    return [
        Fault(corpus.prefix, bin_path(corpus.prefix), message)
        for corpus, message in zip(corpora, found, strict=True)
        if message is not None
    ]


def _beside(communicator: Communicator, facts: dict[str, CorpusFacts]) -> list[Fault]:
    """Return how corpora differ from the receipts beside them. Collective."""

    def compare() -> list[Fault]:
        receipts = ((prefix, found, find_receipt(prefix)) for prefix, found in facts.items())
        return [
            Fault(prefix, receipt_path(prefix), message)
            for prefix, found, receipt in receipts
            if receipt is not None
            for message in receipt.differences(found)
        ]

    return on_rank_0(communicator, compare, list[Fault], "comparing receipts")


def _show_limits(
    reads: bool, readback: int, sound: Sequence[CorpusFacts], faults: Sequence[Fault]
) -> None:
    """Say what was not compared, what was read back, and what can be repaired."""
    if sound and not reads:
        typer.echo("tokens were not read: give --vocab-size N; --tokens, with a receipt", err=True)
    if sound and readback:
        # Of shards, all are compared with their digests, instead of some documents.
        own = [found for found in sound if found.shards is None]
        count = sum(min(readback, found.documents) for found in own)
        if own:
            typer.echo(f"{count:,} documents are equal to their sources", err=True)
    for prefix in dict.fromkeys(fault.prefix for fault in faults):
        if is_repairable(prefix):
            typer.echo(
                f"{prefix}: can be repaired: `distcache convert --repair {prefix} -o OUT`", err=True
            )


class _Asked(NamedTuple):
    """What is compared beside the soundness of corpora."""

    readback: int
    vocab_size: int | None
    tokenizer: str | None
    tokens: bool


def _audit(
    communicator: Communicator, facts: dict[str, CorpusFacts], asked: _Asked, progress: Progress
) -> Sequence[Fault]:
    with needing("checking against a source"):
        from distcache.edit.audit import audit, digest_faults, receipts_beside  # noqa: PLC0415

    def find() -> tuple[dict[str, Receipt], list[Fault]]:
        if not asked.readback and not asked.tokens:
            return {}, []
        receipts, missing = receipts_beside(facts)
        return receipts, missing if asked.readback or asked.vocab_size is None else []

    receipts, missing = on_rank_0(
        communicator, find, tuple[dict[str, Receipt], list[Fault]], "reading receipts"
    )
    found = audit(
        communicator,
        facts,
        receipts,
        asked.vocab_size,
        asked.readback,
        asked.tokenizer,
        progress,
    )
    if asked.tokens:
        found += digest_faults(communicator, facts, receipts, progress)
    return [*missing, *found]


def _show_findings(facts: Sequence[CorpusFacts], faults: Sequence[Fault]) -> None:
    if facts:
        with_masks = any(found.loss for found in facts)
        print_records(
            "Sound corpora",
            [
                {
                    "corpus": found.prefix,
                    "sequences": found.sequences,
                    "documents": found.documents,
                    "tokens": found.tokens,
                    "empty": found.empty_sequences,
                    "offsets": "view" if found.view else "running sum",
                    "idx digest": found.idx_digest,
                }
                | (
                    {"with loss": f"{found.loss.tokens:,}" if found.loss else "all"}
                    if with_masks
                    else {}
                )
                for found in facts
            ],
        )
    if faults:
        print_records("Faults", [{"file": f.path, "what is wrong": f.message} for f in faults])


def show_command(
    corpus: CorpusArgument,
    numbers: Annotated[
        list[str] | None,
        typer.Argument(metavar="[N|A:B]...", help="Documents, from 0; by default the first."),
    ] = None,
    random: Annotated[int, typer.Option(min=0, help="So many documents at random.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of --random.")] = 1234,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Tokenizer for the text, if the receipt beside the corpus names none."),
    ] = None,
    tokens: Annotated[
        int,
        typer.Option("--length", min=0, help="Tokens of each document that are shown; 0 is all."),
    ] = MAX_SHOWN_TOKENS,
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
            known = {"line": document.line, "row": document.row}
            places = (f", {name} {number}" for name, number in known.items() if number is not None)
            typer.echo(f"  from {document.source}{''.join(places)}")
        typer.echo(f"  tokens {' '.join(map(str, shown))}{more}")
        if document.text is not None:
            typer.echo(
                f"  text {document.text!r}"
                if not tokens
                else f"  text {document.text[: 8 * tokens]!r}"
            )
