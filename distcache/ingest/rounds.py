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
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import msgspec

from distcache.corpus.receipt import Skipped
from distcache.errors import CorpusError, DistcacheError
from distcache.ingest.inputs import Input
from distcache.ingest.part import Blocks, Part, PieceFacts, Problem, Sink
from distcache.ingest.pieces import (
    Counts,
    InputPiece,
    Segment,
    TaskRecord,
    make_rounds,
    place,
    segments_of,
)
from distcache.ingest.token_store import TokenStore
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
COMPRESSED: Final = 4  # cost of a byte of a compressed file, relative to others


class _Report(msgspec.Struct, frozen=True):
    pieces: list[PieceFacts]
    digest: str
    size: Counts


def run_rounds(
    communicator: Communicator,
    work: Work,
    done: list[TaskRecord],
    owners: Sequence[int],
    journal: Journal | None,
    threads: int,
    progress: Progress,
) -> list[TaskRecord]:
    """Run all tasks that are not done. Collective.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks.
    work : Work
        All tasks.
    done : list of TaskRecord
        Records of the first tasks.
    owners : sequence of int
        The rank that runs each task.
    journal : Journal or None
        Journal of rank 0.
    threads : int
        Workers of each rank.
    progress : Progress
        Receives the bytes that all ranks have read.

    Returns
    -------
    list of TaskRecord
        Records of all tasks, on all ranks.

    Raises
    ------
    CorpusError
        On all ranks: the first invalid row, if that ends the ingest.
    """
    records = list(done)
    locator = Locator(work.inputs, work.pieces)
    for record in done:
        for piece, facts in zip(work.tasks[record.task], record.pieces, strict=True):
            locator.skipped(piece, facts)
    left = range(len(done), len(work.tasks))
    own = [task for task in left if owners[task] == communicator.rank]
    with Workers(work, own, threads, progress.note) as workers:
        nbytes = [work.bytes_of(task) for task in left]
        for tasks in make_rounds(nbytes, len(done), communicator.size):
            made = _round(communicator, work, records, tasks, owners, workers, locator)
            records += made
            on_rank_0(communicator, partial(_append, journal, made), None, "the journal")
            progress.advance(sum(work.bytes_of(task) for task in tasks))
    return records


def _append(journal: Journal | None, records: list[TaskRecord]) -> None:
    assert journal is not None, "rank 0 has the journal"
    for record in records:
        journal.append(record)


def _round(
    communicator: Communicator,
    work: Work,
    records: list[TaskRecord],
    tasks: range,
    owners: Sequence[int],
    workers: Workers,
    locator: Locator,
) -> list[TaskRecord]:
    """Take the next tasks, place their documents, and write them. Collective."""
    own = [task for task in tasks if owners[task] == communicator.rank]
    with contextlib.ExitStack() as stack:

        def take() -> dict[int, Part]:
            return {task: stack.enter_context(workers.take()) for task in own}

        parts = on_all_ranks(communicator, take, "reading inputs")
        mine = {task: _report_of(part) for task, part in parts.items()}
        found = communicator.allgather(mine, dict[int, _Report], "the result of inputs")
        reports = [found[owners[task]][task] for task in tasks]
        for task, entry in zip(tasks, reports, strict=True):
            for piece, facts in zip(work.tasks[task], entry.pieces, strict=False):
                for problem, row in zip(facts.problems, locator.skipped(piece, facts), strict=True):
                    if problem.fatal or work.fail:
                        error = DistcacheError if problem.fatal else CorpusError
                        raise error(str(row)).of_all_ranks()
        made = _place(communicator, work, records, tasks, owners, reports, parts)

        def write() -> None:
            for record in made:
                if record.task in parts:
                    work.store.write(parts[record.task], record.segments)

        on_all_ranks(communicator, write, "writing tokens")
    return made


def _report_of(part: Part) -> _Report:
    size = Counts(len(part.counts), len(part.lengths), part.tokens)
    return _Report(part.pieces, part.digest, size)


def _place(
    communicator: Communicator,
    work: Work,
    records: list[TaskRecord],
    tasks: range,
    owners: Sequence[int],
    reports: list[_Report],
    parts: Mapping[int, Part],
) -> list[TaskRecord]:
    """Return the records of a round. Collective, where tasks must be split."""
    at = next(
        (record.segments[-1] for record in reversed(records) if record.segments),
        Segment(0, Counts(), Counts()),
    )
    item_size = work.store.dtype.itemsize
    made = []
    for task, report in zip(tasks, reports, strict=True):
        whole = place(at, report.size, item_size, work.limit)
        segments = [whole] if whole is not None else []
        if whole is None:
            assert work.limit is not None
            mine: list[Segment] = []
            if (part := parts.get(task)) is not None:
                mine = segments_of(at, part.lengths, part.counts, item_size, work.limit)
            shares = communicator.allgather(mine, list[Segment], "where corpora end")
            segments = shares[owners[task]]
        made.append(TaskRecord(task, report.pieces, report.digest, segments))
        at = segments[-1] if segments else at
    return made


class Locator:
    """Counts the lines of inputs, piece after piece, to locate rows.

    Parameters
    ----------
    inputs, pieces
        Inputs and pieces of the ingest.
    """

    def __init__(self, inputs: Sequence[Input], pieces: Sequence[InputPiece]) -> None:
        self._inputs = inputs
        self._pieces = pieces
        self._source = -1
        self._before = 0

    def skipped(self, piece: int, facts: PieceFacts) -> list[Skipped]:
        """Return the invalid rows of the next piece, by their places in the input."""
        source = self._pieces[piece].source
        if source != self._source:
            self._source, self._before = source, 0
        entry = self._inputs[source]
        found = [self._locate(entry, problem) for problem in facts.problems]
        self._before += facts.lines
        return found

    def _locate(self, entry: Input, problem: Problem) -> Skipped:
        if problem.group is not None:
            return Skipped(entry.path, problem.reason, row_group=problem.group, row=problem.place)
        if problem.byte is None:
            return Skipped(entry.path, problem.reason)
        line = self._before + problem.place + 1
        return Skipped(entry.path, problem.reason, line=line, byte=problem.byte)


class Reader(Protocol):
    """Reads documents from pieces of inputs. Called from several threads."""

    def read(
        self, entry: Input, piece: InputPiece, part: Sink, stopped: Callable[[], bool]
    ) -> bool:
        """Add the documents of a piece to a part; false if an error ends the ingest."""
        ...


@dataclass
class Work:
    """The work of an ingest."""

    # inputs, their pieces, and tasks as ranges of pieces
    inputs: list[Input]
    pieces: list[InputPiece]
    tasks: list[range]
    reader: Reader  # reads pieces
    store: TokenStore  # stores the documents
    spools: bool  # whether the tokens of a task may go to a file
    limit: int | None  # bytes of a `.bin`
    fail: bool  # whether an invalid row ends the ingest

    def bytes_of(self, task: int) -> int:
        """Return the bytes of the inputs of a task."""
        return sum(self.pieces[index].nbytes for index in self.tasks[task])

    def cost_of(self, task: int) -> int:
        """Return the cost of a task, in bytes that are not compressed."""
        pieces = [self.pieces[index] for index in self.tasks[task]]
        return sum(
            piece.nbytes * (COMPRESSED if self.inputs[piece.source].compression else 1)
            for piece in pieces
        )


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
