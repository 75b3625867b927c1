"""From written tokens to corpora under their names: proven, indexed, examined, published."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import numpy as np

from distcache.corpus.corpus import CorpusFacts
from distcache.corpus.examine import require_sound
from distcache.corpus.idx import idx_path
from distcache.corpus.idx_writer import IdxPlan, lay_out_idx, write_bounds, write_lengths
from distcache.corpus.receipt import Receipt
from distcache.corpus.token_types import code_of
from distcache.errors import DistcacheError
from distcache.files import no_space_as_error
from distcache.ingest.placing import Counts, Segment, TaskRecord, reader_of
from distcache.ingest.store import COUNTS, LENGTHS, Store
from distcache.progress import Progress
from distcache.ranks.agreement import from_rank_0, together
from distcache.ranks.balance import slice_bounds
from distcache.ranks.communicator import Communicator

__all__ = ["count_intact", "make_corpora"]


def count_intact(
    communicator: Communicator, store: Store, records: Sequence[TaskRecord], owners: Sequence[int]
) -> int:
    """Return how many of the first tasks can be read back as they were written. Collective.

    Every rank closes what it has written, and reads what others have: the bytes have reached the
    filesystem then, and are not those of a cache of its own.
    """
    together(communicator, store.settle, "syncing")
    rank, ranks = communicator.rank, communicator.size
    own = [record for record in records if reader_of(owners[record.task], ranks) == rank]

    def first_lost() -> int:
        return next((record.task for record in own if not store.holds(record)), len(records))

    found = together(communicator, first_lost, "reading back")
    return min(communicator.gather_all(found, int, "reading back"))


def make_corpora(
    communicator: Communicator,
    store: Store,
    records: Sequence[TaskRecord],
    owners: Sequence[int],
    make_receipts: Callable[[list[CorpusFacts]], list[Receipt]],
    threads: int,
    progress: Progress,
) -> list[Receipt]:
    """Make corpora of what all tasks have written, which still want their names. Collective.

    Parameters
    ----------
    communicator : Communicator
        Of all ranks.
    store : Store
        Has the tokens, lengths and counts.
    records : sequence of TaskRecord
        Of all tasks.
    owners : sequence of int
        The rank that wrote each.
    make_receipts : callable
        Returns the receipts of corpora.
    threads : int
        Files that each rank reads at a time.
    progress : Progress
        Told of the steps.

    Returns
    -------
    list of Receipt
        Of each corpus, on all ranks.

    Raises
    ------
    DistcacheError
        If a byte reads back differently; nothing is published then.
    """
    output = store.output
    progress.phase("reading back")
    if count_intact(communicator, store, records, owners) < len(records):
        error = DistcacheError(
            f"{output.directory}: reads back other bytes than were written; run again, which "
            "resumes with what is right"
        )
        error.agreed = True
        raise error
    progress.phase("writing the index")
    segments = [segment for record in records for segment in record.segments]
    ends = _ends(segments)
    from_rank_0(communicator, lambda: _lay_out(store, ends), None, "laying out the index")
    together(communicator, lambda: _fill(communicator, store, segments, ends), "writing the index")
    progress.phase("examining")
    prefixes = [output.unfinished(shard) for shard in range(len(ends))]
    sound = require_sound(communicator, prefixes, threads)
    return make_receipts([sound[prefix] for prefix in prefixes])


def _ends(segments: Sequence[Segment]) -> list[Counts]:
    """Return what each corpus has."""
    found: dict[int, Counts] = {0: Counts()}
    for segment in segments:
        found[segment.shard] = segment.first + segment.size
    return [found[shard] for shard in range(len(found))]


def _plan(store: Store, end: Counts) -> IdxPlan:
    return IdxPlan(code_of(store.dtype), end.sequences, end.documents)


def _lay_out(store: Store, ends: Sequence[Counts]) -> None:
    """Make each `.idx` with its first and last bytes, and cut what a killed ingest left behind."""
    for shard, end in enumerate(ends):
        plan = _plan(store, end)
        lay_out_idx(store.output.unfinished(shard), plan)
        store.cut(shard, end.tokens * plan.item_size)


def _fill(
    communicator: Communicator, store: Store, segments: Sequence[Segment], ends: Sequence[Counts]
) -> None:
    """Write this rank's slice of every `.idx`, and sync all that it has written."""
    bounds = slice_bounds(len(segments), communicator.size, 1)
    own = segments[bounds[communicator.rank] : bounds[communicator.rank + 1]]
    for shard in sorted({segment.shard for segment in own}):
        plan = _plan(store, ends[shard])
        path = idx_path(store.output.unfinished(shard))
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            with no_space_as_error(path):
                for segment in own:
                    if segment.shard == shard:
                        _fill_segment(descriptor, plan, store, segment)
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    store.settle()


def _fill_segment(descriptor: int, plan: IdxPlan, store: Store, segment: Segment) -> None:
    first = segment.first
    lengths = store.values(segment, LENGTHS)
    write_lengths(descriptor, plan, first.sequences, first.tokens, lengths)
    counts = store.values(segment, COUNTS)
    starts = first.sequences + np.cumsum(counts, dtype=np.int64) - counts
    write_bounds(descriptor, plan, first.documents, starts)
