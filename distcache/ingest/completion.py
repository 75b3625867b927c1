"""Complete corpora whose pieces are finished: read back what was written, and write the index."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from distcache.corpus.corpus import CorpusFacts
from distcache.corpus.examine import require_sound
from distcache.corpus.idx import code_of, idx_path
from distcache.corpus.idx_writer import IdxPlan, lay_out_idx, write_bounds, write_lengths
from distcache.errors import DistcacheError
from distcache.ingest.document_buffer import Counts
from distcache.ingest.ingest_work import Work
from distcache.ingest.pieces import Segment, reader_of
from distcache.ingest.token_store import COUNTS, LENGTHS, TokenStore
from distcache.ranks.agreement import on_all_ranks, on_rank_0
from distcache.ranks.communicator import Communicator
from distcache.ranks.partition import slice_bounds
from distcache.ranks.progress import Progress
from distcache.storage.files import closing_fd, no_space_as_error, open_to_write


def count_intact(communicator: Communicator, work: Work) -> int:
    """Return how many of the finished pieces read back as they were written. Collective.

    Every rank syncs its files, and reads what another has written, so that the bytes come from the
    filesystem and not from its own page cache.
    """
    store, records = work.store, work.records
    on_all_ranks(communicator, store.settle, "syncing")
    rank, ranks = communicator.rank, communicator.size
    own = [record for record in records if reader_of(work.owners[record.piece], ranks) == rank]

    def first_lost() -> int:
        return next((record.piece for record in own if not store.holds(record)), len(records))

    found = on_all_ranks(communicator, first_lost, "reading back")
    return min(communicator.allgather(found, int, "reading back"))


def make_corpora(
    communicator: Communicator, work: Work, threads: int, progress: Progress
) -> list[CorpusFacts]:
    """Complete the corpora that all pieces have written, still without final names. Collective.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks.
    work : Work
        All pieces, which are finished.
    threads : int
        Files that each rank reads at a time.
    progress : Progress
        Receives the steps.

    Returns
    -------
    list of CorpusFacts
        Facts of each corpus, on all ranks.

    Raises
    ------
    DistcacheError
        If a byte reads back different; then nothing is published.
    """
    store, output = work.store, work.store.output
    progress.phase("reading back")
    if count_intact(communicator, work) < len(work.records):
        raise DistcacheError(
            f"{output.directory}: reads back different from what was written; run again, which "
            "resumes with what is intact"
        ).of_all_ranks()
    progress.phase("writing the index")
    segments = work.segments
    ends = _ends(segments)
    on_rank_0(communicator, lambda: _lay_out(store, ends), None, "laying out the index")
    on_all_ranks(
        communicator, lambda: _fill(communicator, store, segments, ends), "writing the index"
    )
    if any(record.facts.masked for record in work.records):
        on_all_ranks(communicator, lambda: _fill_losses(communicator, work), "writing loss masks")
    progress.phase("examining")
    prefixes = [output.unfinished(shard) for shard in range(len(ends))]
    sound = require_sound(communicator, prefixes, threads)
    return [sound[prefix] for prefix in prefixes]


def _ends(segments: Sequence[Segment]) -> list[Counts]:
    """Return the size of each corpus."""
    found: dict[int, Counts] = {0: Counts()}
    for segment in segments:
        found[segment.shard] = segment.first + segment.size
    return [found[shard] for shard in range(len(found))]


def _plan(store: TokenStore, end: Counts) -> IdxPlan:
    return IdxPlan(code_of(store.dtype), end.sequences, end.documents)


def _lay_out(store: TokenStore, ends: Sequence[Counts]) -> None:
    """Make each `.idx` with its first and last bytes, and truncate leftovers of killed ingests."""
    for shard, end in enumerate(ends):
        plan = _plan(store, end)
        lay_out_idx(store.output.unfinished(shard), plan)
        store.cut(shard, end.tokens * plan.item_size)


def _fill_losses(communicator: Communicator, work: Work) -> None:
    """Give the tokens of this rank's share of pieces without a mask a loss, and sync."""
    bounds = slice_bounds(len(work.records), communicator.size, 1)
    for record in work.records[bounds[communicator.rank] : bounds[communicator.rank + 1]]:
        for segment in record.segments if not record.facts.masked else ():
            work.store.give_loss(segment)
    if communicator.rank == 0:
        for shard, end in enumerate(_ends(work.segments)):
            work.store.cut_losses(shard, end.tokens)
    work.store.settle()


def _fill(
    communicator: Communicator,
    store: TokenStore,
    segments: Sequence[Segment],
    ends: Sequence[Counts],
) -> None:
    """Write this rank's slice of every `.idx`, and sync all that it has written."""
    bounds = slice_bounds(len(segments), communicator.size, 1)
    own = segments[bounds[communicator.rank] : bounds[communicator.rank + 1]]
    for shard in sorted({segment.shard for segment in own}):
        plan = _plan(store, ends[shard])
        path = idx_path(store.output.unfinished(shard))
        with no_space_as_error(path), closing_fd(open_to_write(path)) as descriptor:
            for segment in own:
                if segment.shard == shard:
                    first = segment.first
                    lengths = store.values(segment, LENGTHS)
                    write_lengths(descriptor, plan, first.sequences, first.tokens, lengths)
                    counts = store.values(segment, COUNTS)
                    starts = first.sequences + np.cumsum(counts, dtype=np.int64) - counts
                    write_bounds(descriptor, plan, first.documents, starts)
            os.fsync(descriptor)
    store.settle()
