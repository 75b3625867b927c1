"""What there is to do, and the threads of a rank that do its share."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Final, Protocol

from distcache.activity import moved
from distcache.files import digest_range
from distcache.ingest.blocks import Blocks
from distcache.ingest.inputs import Input
from distcache.ingest.part import Part, PieceFacts, Sink
from distcache.ingest.pieces import Piece
from distcache.ingest.store import Store

__all__ = ["Reader", "Work", "Workers"]

AHEAD: Final = 32 << 20  # bytes of inputs that may be finished, and wait in memory for their round
SPOOLED: Final = 4 << 30  # likewise, where they may wait in a file
NOTE_EVERY: Final = 20.0  # seconds between messages about a task
MOST_AHEAD: Final = 8  # tasks that may wait in memory, however small they are
COMPRESSED: Final = 4  # what a byte of a compressed file takes, of others


class Reader(Protocol):
    """Makes documents of a piece of an input. Called from several threads."""

    def read(self, entry: Input, piece: Piece, part: Sink, stopped: Callable[[], bool]) -> bool:
        """Add the documents of a piece to a part; false if an error ends the ingest."""
        ...


@dataclass
class Work:
    """What is to be done.

    Attributes
    ----------
    inputs, pieces, tasks
        What to read; tasks are ranges of pieces, and pieces are of inputs.
    reader : Reader
        Reads it.
    store : Store
        Gets it.
    spools : bool
        Whether a task may have more tokens than memory.
    limit : int or None
        Bytes of a `.bin`.
    fail : bool
        Whether a row that is wrong ends the ingest.
    """

    inputs: list[Input]
    pieces: list[Piece]
    tasks: list[range]
    reader: Reader
    store: Store
    spools: bool
    limit: int | None
    fail: bool

    def bytes_of(self, task: int) -> int:
        """Return the bytes of the inputs of a task."""
        return sum(self.pieces[index].nbytes for index in self.tasks[task])

    def cost_of(self, task: int) -> int:
        """Return what a task is likely to take, as bytes that are not compressed."""
        pieces = [self.pieces[index] for index in self.tasks[task]]
        return sum(
            piece.nbytes * (COMPRESSED if self.inputs[piece.source].compression else 1)
            for piece in pieces
        )


class Workers:
    """The threads of a rank, which go on with its tasks in order, and not too far ahead.

    Parameters
    ----------
    work : Work
        All tasks.
    tasks : sequence of int
        Those of this rank.
    threads : int
        How many.
    note : callable
        Told, now and then, of a task that takes long.
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
        self._ahead = 0  # bytes of inputs that are being read, or wait
        self._held = 0  # bytes of memory of what waits
        self._lock = threading.Lock()
        self._parts: dict[int, Part] = {}
        self._note = note
        self._blocks = Blocks()

    def __enter__(self) -> Workers:
        self._go_on()  # also where the first round has no task of this rank
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for _task, left in self._going:
            if not left.cancelled() and left.exception() is None:
                left.result().close()

    def take(self) -> Part:
        """Return what came of this rank's next task."""
        self._go_on()
        task, future = self._going.popleft()
        while not wait([future], NOTE_EVERY).done:
            self._tell(task)
        part = future.result()
        self._ahead -= self._work.bytes_of(task)
        with self._lock:
            self._held -= part.held
            del self._parts[task]
        self._go_on()
        return part

    def _tell(self, task: int) -> None:
        """Say how far a task is that takes long."""
        if (part := self._parts.get(task)) is not None and part.pieces:
            index = self._work.tasks[task][len(part.pieces) - 1]
            path = self._work.inputs[self._work.pieces[index].source].path
            self._note(f"reading {path}: {part.pieces[-1].rows:,} rows so far")

    def _go_on(self) -> None:
        """Begin tasks, as far ahead as there is room for what comes of them."""
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
        moved()
        with self._lock:
            if self._held + part.held > AHEAD:
                part.put_by()
            self._held += part.held
        return part
