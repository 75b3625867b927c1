"""The rounds of an ingest: each takes the next tasks in order, and every rank writes its own.

The places of a round's documents follow from those before them, so that every byte is written once,
at its final place, and nothing is merged. Workers continue with tasks of later rounds: a long task,
such as a large compressed file, does not block the others.
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
from distcache.ingest.part import Blocks, Counts, Part, PieceFacts
from distcache.ingest.pieces import Segment, TaskRecord, make_rounds, place, segments_of
from distcache.ingest.tasks import Locator, Work
from distcache.ranks.agreement import on_all_ranks, on_rank_0
from distcache.ranks.communicator import Communicator
from distcache.ranks.progress import Progress
from distcache.storage.files import digest_range
from distcache.storage.journal import Journal
from distcache.storage.watchdog import tick

AHEAD: Final = 32 << 20  # bytes of inputs of finished tasks that wait in memory for their round
SPOOLED: Final = 4 << 30  # the same, if they may wait in a file
NOTE_EVERY: Final = 20.0  # seconds between two messages about a task
MOST_AHEAD: Final = 8  # tasks that may wait in memory, however small


def run_rounds(
    communicator: Communicator,
    work: Work,
    journal: Journal | None,
    threads: int,
    progress: Progress,
) -> None:
    """Run all tasks that are not finished, and add their records on all ranks. Collective.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks.
    work : Work
        All tasks, and the ranks that run them.
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
    locator = Locator(work)
    for record in work.records:  # lines of finished tasks count, too
        for piece, facts in zip(work.tasks[record.task], record.pieces, strict=True):
            locator.skipped(piece, facts)
    left = range(len(work.records), len(work.tasks))
    own = [task for task in left if work.owners[task] == communicator.rank]
    with Workers(work, own, threads, progress.note) as workers:
        nbytes = [work.bytes_of(task) for task in left]
        for tasks in make_rounds(nbytes, left.start, communicator.size):
            made = _round(communicator, work, tasks, workers, locator)
            work.records += made
            on_rank_0(communicator, partial(_append, journal, made), None, "the journal")
            progress.advance(sum(work.bytes_of(task) for task in tasks))


def _append(journal: Journal | None, records: list[TaskRecord]) -> None:
    assert journal is not None, "rank 0 has the journal"
    for record in records:
        journal.append(record)


def _round(
    communicator: Communicator, work: Work, tasks: range, workers: Workers, locator: Locator
) -> list[TaskRecord]:
    """Take the next tasks, place their documents, and write them. Collective."""
    own = [task for task in tasks if work.owners[task] == communicator.rank]
    with contextlib.ExitStack() as stack:

        def take() -> dict[int, Part]:
            return {task: stack.enter_context(workers.take()) for task in own}

        parts = on_all_ranks(communicator, take, "reading inputs")
        mine = {task: TaskRecord(task, part.pieces, part.digest) for task, part in parts.items()}
        found = communicator.allgather(mine, dict[int, TaskRecord], "the result of inputs")
        read = [found[work.owners[task]][task] for task in tasks]
        _require_valid(work, read, locator)
        made = _placed(communicator, work, read, parts)

        def write() -> None:
            for record in made:
                if record.task in parts:
                    work.store.write(parts[record.task], record.segments)

        on_all_ranks(communicator, write, "writing tokens")
    return made


def _require_valid(work: Work, records: Sequence[TaskRecord], locator: Locator) -> None:
    """Raise the first invalid row that ends the ingest; all ranks have all records."""
    for record in records:
        for piece, facts in zip(work.tasks[record.task], record.pieces, strict=False):
            for problem, row in zip(facts.problems, locator.skipped(piece, facts), strict=True):
                if problem.fatal or work.fail:
                    error = DistcacheError if problem.fatal else CorpusError
                    raise error(str(row)).of_all_ranks()


def _placed(
    communicator: Communicator, work: Work, read: list[TaskRecord], parts: Mapping[int, Part]
) -> list[TaskRecord]:
    """Return the records of a round with their places. Collective, where tasks must be split."""
    at = next(
        (record.segments[-1] for record in reversed(work.records) if record.segments),
        Segment(0, Counts(), Counts()),
    )
    item_size = work.store.dtype.itemsize
    made = []
    for record in read:
        whole = place(at, record.size, item_size, work.limit)
        if whole is not None:
            segments = [whole]
        else:
            assert work.limit is not None
            mine: list[Segment] = []
            if (part := parts.get(record.task)) is not None:
                mine = segments_of(at, part.lengths, part.counts, item_size, work.limit)
            shares = communicator.allgather(mine, list[Segment], "where corpora end")
            segments = shares[work.owners[record.task]]
        made.append(msgspec.structs.replace(record, segments=segments))
        at = segments[-1] if segments else at
    return made


class Workers:
    """The threads of a rank, which run its tasks in order, and not too far ahead.

    Parameters
    ----------
    work : Work
        All tasks.
    tasks : sequence of int
        Tasks of this rank.
    threads : int
        Number of threads.
    note : callable
        Called now and then during a long task.
    """

    def __init__(
        self, work: Work, tasks: Sequence[int], threads: int, note: Callable[[str], None]
    ) -> None:
        self._work = work
        self._left = deque(tasks)
        self._threads = threads
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="ingest")
        self._going: deque[tuple[int, Future[Part]]] = deque()
        self._ahead = 0  # bytes of inputs of tasks that run or wait
        self._held = 0  # bytes of memory of tasks that wait
        self._lock = threading.Lock()
        self._parts: dict[int, Part] = {}
        self._note = note
        self._blocks = Blocks()

    def __enter__(self) -> Workers:
        self._start()  # the first round may have no task of this rank
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for _task, left in self._going:
            if not left.cancelled() and left.exception() is None:
                left.result().close()

    def take(self) -> Part:
        """Return the result of this rank's next task."""
        self._start()
        task, future = self._going.popleft()
        while not wait([future], NOTE_EVERY).done:
            self._note_progress(task)
        part = future.result()
        self._ahead -= self._work.bytes_of(task)
        with self._lock:
            self._held -= part.held
            del self._parts[task]
        self._start()
        return part

    def _note_progress(self, task: int) -> None:
        """Report the progress of a long task."""
        if (part := self._parts.get(task)) is not None and part.pieces:
            index = self._work.tasks[task][len(part.pieces) - 1]
            path = self._work.inputs[self._work.pieces[index].source].path
            self._note(f"reading {path}: {part.pieces[-1].rows:,} rows so far")

    def _start(self) -> None:
        """Start tasks, as far ahead as there is room for their results."""
        while self._left and (len(self._going) < self._threads or self._has_room()):
            task = self._left.popleft()
            self._ahead += self._work.bytes_of(task)
            self._going.append((task, self._pool.submit(self._run, task)))

    def _has_room(self) -> bool:
        if self._work.spools:
            return self._ahead < SPOOLED
        return self._ahead < AHEAD and len(self._going) < self._threads + MOST_AHEAD

    def _run(self, task: int) -> Part:
        work = self._work
        directory = work.store.output.directory if work.spools else None
        part = self._parts[task] = Part(work.store.dtype, self._blocks, directory)
        for index in work.tasks[task]:
            if self._stop.is_set():
                break
            piece = work.pieces[index]
            entry = work.inputs[piece.source]
            digest = digest_range(entry.path, piece.first_byte, piece.last_byte, self._stop.is_set)
            part.pieces.append(PieceFacts(digest))
            if not work.reader.read(entry, piece, part, self._stop.is_set):
                break
        tick()
        with self._lock:
            if self._held + part.held > AHEAD:
                part.spill()
            self._held += part.held
        return part
