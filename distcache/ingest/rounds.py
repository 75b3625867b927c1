"""The rounds of an ingest: each takes the next pieces in order, and every rank writes its own.

The places of a round's documents follow from those before them, so that every byte is written once,
at its final place, and nothing is merged. Workers continue with pieces of later rounds: a long
piece, such as a large compressed file, does not block the others.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Final

import msgspec

from distcache.errors import CorpusError, DistcacheError
from distcache.ingest.document_buffer import Counts, DocumentBuffer, Memory, PieceFacts, Spool
from distcache.ingest.ingest_work import Work, locate
from distcache.ingest.pieces import PieceRecord, Segment, make_rounds, place, segments_of
from distcache.ranks.agreement import on_all_ranks, on_rank_0
from distcache.ranks.communicator import Communicator
from distcache.ranks.progress import Progress
from distcache.storage.files import digest_range
from distcache.storage.journal import Journal
from distcache.storage.watchdog import tick

WAITING_BYTES: Final = 32 << 20  # bytes of inputs of finished pieces, until their round
SPOOLED_BYTES: Final = 4 << 30  # bytes of tokens, and of their inputs, that wait in a file
NOTE_EVERY: Final = 20.0  # seconds between two messages about a piece
MAX_WAITING: Final = 8  # pieces that may wait in memory, however small


def run_rounds(
    communicator: Communicator,
    work: Work,
    journal: Journal | None,
    threads: int,
    progress: Progress,
) -> None:
    """Read all pieces that are not finished, and add their records on all ranks. Collective.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks.
    work : Work
        All pieces, and the ranks that read them.
    journal : Journal or None
        Journal of rank 0.
    threads : int
        Workers of each rank.
    progress : Progress
        Receives the bytes that all ranks have read.

    Raises
    ------
    CorpusError
        On all ranks: the first invalid row, if that ends the ingest.
    """
    left = range(len(work.records), len(work.pieces))
    own = [piece for piece in left if work.owners[piece] == communicator.rank]
    with Workers(work, own, threads, progress.note) as workers:
        nbytes = [work.pieces[piece].nbytes for piece in left]
        for pieces in make_rounds(nbytes, left.start, communicator.size):
            made = _round(communicator, work, pieces, workers)
            work.records += made
            on_rank_0(communicator, partial(_append, journal, made), None, "the journal")
            progress.advance(work.bytes_of(pieces))


def _append(journal: Journal | None, records: list[PieceRecord]) -> None:
    assert journal is not None, "rank 0 has the journal"
    journal.append(*records)


def _round(
    communicator: Communicator, work: Work, pieces: range, workers: Workers
) -> list[PieceRecord]:
    """Take the next pieces, place their documents, and write them. Collective."""
    own = [piece for piece in pieces if work.owners[piece] == communicator.rank]
    with contextlib.ExitStack() as stack:

        def take() -> dict[int, DocumentBuffer]:
            return {piece: stack.enter_context(workers.take()) for piece in own}

        buffers = on_all_ranks(communicator, take, "reading inputs")
        mine = {
            piece: PieceRecord(piece, buffer.facts, buffer.digest)
            for piece, buffer in buffers.items()
        }
        found = communicator.allgather(mine, dict[int, PieceRecord], "the result of inputs")
        read = [found[work.owners[piece]][piece] for piece in pieces]
        _require_valid(work, read)
        made = _placed(communicator, work, read, buffers)

        def write() -> None:
            for record in made:
                if record.piece in buffers:
                    work.store.write(buffers[record.piece], record.segments)

        on_all_ranks(communicator, write, "writing tokens")
    return made


def _require_valid(work: Work, read: Sequence[PieceRecord]) -> None:
    """Raise the first invalid row that ends the ingest; all ranks have all records."""
    for record in read:
        for problem in record.facts.problems:
            if problem.fatal or work.fail:
                firsts = work.firsts([*work.records, *read])
                row = locate(work.input_of(record.piece), problem, firsts[record.piece])
                error = DistcacheError if problem.fatal else CorpusError
                raise error(str(row)).of_all_ranks()


def _placed(
    communicator: Communicator,
    work: Work,
    read: list[PieceRecord],
    buffers: Mapping[int, DocumentBuffer],
) -> list[PieceRecord]:
    """Return the records of a round with their places. Collective, where pieces must be split."""
    at = work.records[-1].segments[-1] if work.records else Segment(0, Counts(), Counts())
    item_size = work.store.dtype.itemsize
    made = []
    for record in read:
        whole = place(at, record.facts.size, item_size, work.limit)
        if whole is not None:
            segments = [whole]
        else:
            assert work.limit is not None
            mine: list[Segment] = []
            if (buffer := buffers.get(record.piece)) is not None:
                mine = segments_of(at, buffer.lengths, buffer.counts, item_size, work.limit)
            shares = communicator.allgather(mine, list[Segment], "where corpora end")
            segments = shares[work.owners[record.piece]]
        made.append(msgspec.structs.replace(record, segments=segments))
        at = segments[-1]
    return made


class Workers:
    """The threads of a rank, which read its pieces in order, and not too far ahead.

    Parameters
    ----------
    work : Work
        All pieces.
    pieces : sequence of int
        Pieces of this rank.
    threads : int
        Number of threads.
    note : callable
        Called now and then during a long piece.
    """

    def __init__(
        self, work: Work, pieces: Sequence[int], threads: int, note: Callable[[str], None]
    ) -> None:
        self._work = work
        self._left = deque(pieces)
        self._threads = threads
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="ingest")
        self._going: deque[tuple[int, Future[DocumentBuffer]]] = deque()
        self._ahead = 0  # bytes of pieces that are read or wait
        self._held = 0  # bytes of memory of pieces that wait
        self._lock = threading.Lock()
        self._buffers: dict[int, DocumentBuffer] = {}
        self._note = note
        self._memory = Memory()
        self._spool = Spool(work.store.output.directory) if work.may_spool else None

    def __enter__(self) -> Workers:
        self._start()  # the first round may have no piece of this rank
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for _piece, left in self._going:
            if not left.cancelled() and left.exception() is None:
                left.result().close()
        if self._spool is not None:
            self._spool.close()

    def take(self) -> DocumentBuffer:
        """Return the documents of this rank's next piece."""
        self._start()
        piece, future = self._going.popleft()
        while not (future.done() or wait([future], NOTE_EVERY).done):
            self._note_progress(piece)
        buffer = future.result()
        self._ahead -= self._work.pieces[piece].nbytes
        with self._lock:
            self._held -= buffer.held
            del self._buffers[piece]
        self._start()
        return buffer

    def _note_progress(self, piece: int) -> None:
        """Report the progress of a long piece."""
        if (buffer := self._buffers.get(piece)) is not None:
            path = self._work.input_of(piece).path
            self._note(f"reading {path}: {buffer.facts.rows:,} rows so far")

    def _start(self) -> None:
        """Start pieces, as far ahead as there is room for their tokens."""
        while self._left and (len(self._going) < self._threads or self._has_room()):
            piece = self._left.popleft()
            self._ahead += self._work.pieces[piece].nbytes
            self._going.append((piece, self._pool.submit(self._read, piece)))

    def _has_room(self) -> bool:
        if self._spool is not None:
            return self._ahead + self._spool.size < SPOOLED_BYTES
        return self._ahead < WAITING_BYTES and len(self._going) < self._threads + MAX_WAITING

    def _read(self, number: int) -> DocumentBuffer:
        work, stopped = self._work, self._stop.is_set
        piece, entry = work.pieces[number], work.input_of(number)
        digest = digest_range(entry.path, piece.first_byte, piece.last_byte, stopped)
        buffer = DocumentBuffer(
            work.store.dtype, PieceFacts(digest), self._memory, self._spool, piece.nbytes
        )
        self._buffers[number] = buffer
        work.reader.read(entry, piece, buffer, stopped)
        tick()
        with self._lock:
            if self._held + buffer.held > WAITING_BYTES:
                buffer.spill()
            self._held += buffer.held
        return buffer
