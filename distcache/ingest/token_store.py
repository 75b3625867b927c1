"""The files of unfinished corpora: ranks write documents, read them back, and write the index."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from distcache.corpus.corpus import CorpusFacts
from distcache.corpus.examine import require_sound
from distcache.corpus.idx import code_of, idx_path
from distcache.corpus.idx_writer import IdxPlan, lay_out_idx, write_bounds, write_lengths
from distcache.errors import DistcacheError
from distcache.ingest.output import Output
from distcache.ingest.part import BLOCK, Part, digest_of
from distcache.ingest.pieces import Counts, Segment, TaskRecord, reader_of
from distcache.ranks.agreement import on_all_ranks, on_rank_0
from distcache.ranks.communicator import Communicator
from distcache.ranks.partition import slice_bounds
from distcache.ranks.progress import Progress
from distcache.storage.files import closing_fd, no_space_as_error, open_to_write, read_range
from distcache.storage.unfinished_file import UnfinishedFile

TOKENS: Final = "bin"
LENGTHS: Final = "lengths"
COUNTS: Final = "counts"
MOST_OPEN: Final = 24  # open files; there may be thousands of corpora


class TokenStore:
    """Files of tokens, of lengths of sequences, and of sequences per document, for each corpus.

    The lengths and counts, int32, become the `.idx` when their number is known.

    Parameters
    ----------
    output : Output
        The paths.
    dtype : dtype
        The token type.
    """

    def __init__(self, output: Output, dtype: np.dtype[Any]) -> None:
        self.output = output
        self.dtype = dtype
        self._open: dict[str, UnfinishedFile] = {}

    def _file(self, shard: int, name: str) -> UnfinishedFile:
        path = self.output.part(shard, name)
        file = self._open.pop(path, None)
        if file is None:
            if len(self._open) >= MOST_OPEN:
                self._settle(next(iter(self._open)))
            file = UnfinishedFile(path, make=True)
        self._open[path] = file  # most recently used last
        return file

    def _settle(self, path: str) -> None:
        self._open[path].sync()
        self._open.pop(path).close()

    def close(self) -> None:
        """Close all files."""
        while self._open:
            self._open.popitem()[1].close()

    def settle(self) -> None:
        """Sync everything that this rank wrote, and close the files until they are used again.

        Files opened after that show the bytes of other ranks on network filesystems.
        """
        while self._open:
            self._settle(next(iter(self._open)))

    def cut(self, shard: int, nbytes: int) -> None:
        """Truncate the tokens of a corpus."""
        self._file(shard, TOKENS).truncate(nbytes)

    def write(self, part: Part, segments: list[Segment]) -> None:
        """Write the documents of a task at their places."""
        self._write_tokens(part, segments)
        for name, values in ((LENGTHS, part.lengths), (COUNTS, part.counts)):
            begin = 0
            for segment in segments:
                first, size = _extent(segment, name)
                self._file(segment.shard, name).write(4 * first, values[begin : begin + size])
                begin += size

    def _write_tokens(self, part: Part, segments: list[Segment]) -> None:
        item = self.dtype.itemsize
        places = iter(segments)
        segment, done, nbytes = None, 0, 0
        for block in part.blocks():
            data = block
            while data.size:
                if done == nbytes:
                    segment = next(places)
                    done, nbytes = 0, segment.size.tokens * item
                assert segment is not None
                piece = data[: nbytes - done]
                at = segment.first.tokens * item + done
                self._file(segment.shard, TOKENS).write(at, piece)
                done += len(piece)
                data = data[piece.size :]

    def values(self, segment: Segment, name: str) -> NDArray[np.int32]:
        """Read the lengths or the counts of a segment, int32.

        Raises
        ------
        EOFError
            If the file ends before.
        """
        begin, size = _extent(segment, name)
        descriptor = self._file(segment.shard, name).descriptor
        content = read_range(descriptor, 4 * begin, 4 * (begin + size))
        return np.frombuffer(content, "<i4")

    def holds(self, record: TaskRecord) -> bool:
        """Return whether the documents of a task read back equal."""
        try:
            lengths = [self.values(segment, LENGTHS) for segment in record.segments]
            counts = [self.values(segment, COUNTS) for segment in record.segments]
            empty = np.empty(0, np.int32)
            found = digest_of(
                self._tokens(record.segments),
                np.concatenate([empty, *lengths]),
                np.concatenate([empty, *counts]),
            )
        except EOFError:
            return False
        return found == record.digest

    def _tokens(self, segments: list[Segment]) -> Iterator[NDArray[np.uint8]]:
        """Yield the tokens' bytes; the buffer is reused."""
        item = self.dtype.itemsize
        room = np.empty(BLOCK, np.uint8)
        for segment in segments:
            at = segment.first.tokens * item
            end = at + segment.size.tokens * item
            descriptor = self._file(segment.shard, TOKENS).descriptor
            while at < end:
                count = os.preadv(descriptor, [room[: end - at].data], at)
                if not count:
                    raise EOFError(f"the file ends at byte {at}, expected {end}")
                yield room[:count]
                at += count


def _extent(segment: Segment, name: str) -> tuple[int, int]:
    """Return the position of a segment's lengths or counts, and their number."""
    if name == LENGTHS:
        return segment.first.sequences, segment.size.sequences
    return segment.first.documents, segment.size.documents


def count_intact(
    communicator: Communicator,
    store: TokenStore,
    records: Sequence[TaskRecord],
    owners: Sequence[int],
) -> int:
    """Return how many of the first tasks read back as they were written. Collective.

    Every rank syncs its files, and reads what another has written, so that the bytes come from the
    filesystem and not from its own page cache.
    """
    on_all_ranks(communicator, store.settle, "syncing")
    rank, ranks = communicator.rank, communicator.size
    own = [record for record in records if reader_of(owners[record.task], ranks) == rank]

    def first_lost() -> int:
        return next((record.task for record in own if not store.holds(record)), len(records))

    found = on_all_ranks(communicator, first_lost, "reading back")
    return min(communicator.allgather(found, int, "reading back"))


def make_corpora(
    communicator: Communicator,
    store: TokenStore,
    records: Sequence[TaskRecord],
    owners: Sequence[int],
    threads: int,
    progress: Progress,
) -> list[CorpusFacts]:
    """Complete the corpora that all tasks have written, still without final names. Collective.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks.
    store : TokenStore
        Has the tokens, lengths and counts.
    records : sequence of TaskRecord
        Records of all tasks.
    owners : sequence of int
        The rank that wrote each.
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
    output = store.output
    progress.phase("reading back")
    if count_intact(communicator, store, records, owners) < len(records):
        raise DistcacheError(
            f"{output.directory}: reads back different from what was written; run again, which "
            "resumes with what is intact"
        ).of_all_ranks()
    progress.phase("writing the index")
    segments = [segment for record in records for segment in record.segments]
    ends = _ends(segments)
    on_rank_0(communicator, lambda: _lay_out(store, ends), None, "laying out the index")
    on_all_ranks(
        communicator, lambda: _fill(communicator, store, segments, ends), "writing the index"
    )
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
