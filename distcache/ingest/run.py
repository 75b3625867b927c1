"""The way of an ingest from files to corpora under their names."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import msgspec

from distcache.corpus.claim import claim_output_together, publish_together
from distcache.corpus.corpus import CorpusFacts
from distcache.corpus.output import Output
from distcache.corpus.receipt import Origin, Receipt, receipt_path
from distcache.errors import CorpusError, DistcacheError
from distcache.ingest.finish import make_corpora
from distcache.ingest.inputs import require_unchanged
from distcache.ingest.journal import Journal
from distcache.ingest.options import TextOptions
from distcache.ingest.placing import TaskRecord, owners_of
from distcache.ingest.prepare import (
    Options,
    find_together,
    make_work_together,
    require_utf8,
    resume_together,
)
from distcache.ingest.receipts import make_receipts
from distcache.ingest.rounds import run_rounds
from distcache.ingest.tokenizer import TokenizerOptions
from distcache.ingest.workers import Work
from distcache.progress import Progress, Silent, Stopwatch
from distcache.ranks.agreement import ending_job, from_rank_0, together
from distcache.ranks.communicator import Communicator
from distcache.ranks.heartbeat import Heartbeat

__all__ = ["Made", "Outcome", "ingest"]


class Made(msgspec.Struct, frozen=True):
    """A corpus that there is now, and its receipt."""

    prefix: str
    receipt: str
    documents: int
    sequences: int
    tokens: int


class Outcome(msgspec.Struct, frozen=True):
    """What an ingest came to.

    Attributes
    ----------
    corpora : list of Made
        In order.
    reused : bool
        Whether they were there, made from the same.
    resumed : float
        Share of the tasks that an earlier run had done.
    rows, documents, empty, skipped, tokens : int
        Of all inputs. Empty rows are dropped, and rows with an error are skipped, if asked for.
    """

    corpora: list[Made]
    reused: bool
    resumed: float
    rows: int
    documents: int
    empty: int
    skipped: int
    tokens: int


def ingest(
    communicator: Communicator,
    words: Sequence[str],
    out: str,
    options: Options,
    tokenizer: TokenizerOptions | None = None,
    threads: int = 1,
    progress: Progress | None = None,
) -> Outcome:
    """Make corpora of files, unless they are there. Collective.

    Parameters
    ----------
    communicator : Communicator
        Of all ranks. Their number changes no byte.
    words : sequence of str
        Files, patterns and directories.
    out : str
        Prefix of the corpus, or of the corpora if they are cut by size.
    options : TextOptions or TokenOptions
        What to read, and what to make of it.
    tokenizer : TokenizerOptions or None
        For text.
    threads : int
        Workers of each rank.
    progress : Progress or None
        Told what rank 0 does.

    Raises
    ------
    DistcacheError
        On all ranks the same. Nothing is under a final name then; what is done is kept, and
        running again goes on from there.
    """
    watch = Stopwatch(progress or Silent(), lambda: communicator.waited)
    if isinstance(options, TextOptions) and not options.append_eod:
        watch.note(
            "warning: documents will not end with an end-of-document token, which most models "
            "need; give --append-eod or --eod TOKEN"
        )
    with ending_job(communicator):
        from_rank_0(
            communicator, lambda: require_utf8(out, options, tokenizer), None, "reading options"
        )
        watch.phase("listing inputs")
        inputs = find_together(communicator, words, options)
        output = Output(out, numbered=options.shard_size is not None)
        work, origin = make_work_together(communicator, inputs, options, tokenizer, output)
        with contextlib.ExitStack() as stack:
            stack.callback(output.leave)
            stack.callback(work.store.close)
            found = claim_output_together(communicator, output, origin)
            if found:
                return _outcome(output, found, resumed=0.0, reused=True)
            heartbeat = stack.enter_context(Heartbeat(output.directory, watch, communicator))
            try:
                return _make(communicator, work, origin, threads, watch, heartbeat)
            except DistcacheError:
                if not output.private and output.is_mine():
                    watch.note(f"what is done is kept in {output.directory}; run again to resume")
                raise


def _make(
    communicator: Communicator,
    work: Work,
    origin: Origin,
    threads: int,
    progress: Stopwatch,
    heartbeat: Heartbeat,
) -> Outcome:
    """Take the steps of an ingest whose output is claimed. Collective."""
    output = work.store.output
    progress.phase("looking for an earlier run")
    from_rank_0(communicator, lambda: output.begin(origin.made_from), None, "making room")
    done = resume_together(communicator, output, work.store, work.tasks)
    progress.phase("reading inputs", sum(map(work.bytes_of, range(len(work.tasks)))))
    progress.advance(sum(map(work.bytes_of, range(len(done)))))
    with contextlib.ExitStack() as stack:
        journal = together(
            communicator,
            lambda: Journal(output.journal, done) if communicator.rank == 0 else None,
            "opening the journal",
        )
        if journal is not None:
            stack.enter_context(journal)
        costs = [work.cost_of(task) for task in range(len(work.tasks))]
        owners = owners_of(costs, len(done), communicator.size)
        records = run_rounds(communicator, work, done, owners, journal, threads, progress)
        own = work.inputs[communicator.rank :: communicator.size]
        together(communicator, lambda: require_unchanged(own), "comparing inputs")
        _require_documents(records)

        def receipts(facts: list[CorpusFacts]) -> list[Receipt]:
            names = [output.name(shard) for shard in range(len(facts))]
            return make_receipts(
                work.inputs, work.pieces, work.tasks, records, facts, names, origin
            )

        receipts_made = make_corpora(
            communicator, work.store, records, owners, receipts, threads, progress
        )
        progress.phase("publishing")
        publish_together(communicator, output, receipts_made, heartbeat)
    return _outcome(output, receipts_made, resumed=len(done) / len(work.tasks), reused=False)


def _require_documents(records: Sequence[TaskRecord]) -> None:
    if not any(piece.documents for record in records for piece in record.pieces):
        error = CorpusError("no input has a document with a token: there is nothing to write")
        error.agreed = True  # all ranks have all records
        raise error


def _outcome(
    output: Output, receipts: Sequence[Receipt], *, resumed: float, reused: bool
) -> Outcome:
    inputs = [entry for receipt in receipts for entry in receipt.inputs]
    return Outcome(
        corpora=[
            Made(
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
