"""What there is to do, and the threads of a rank that do its share."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Protocol

from distcache.ingest.blocks import Blocks
from distcache.ingest.digests import digest_range
from distcache.ingest.inputs import Input
from distcache.ingest.part import Part, PieceFacts, Sink
from distcache.ingest.pieces import Piece
from distcache.ingest.store import Store

__all__ = ["Reader", "Work", "Workers"]

AHEAD: Final = 32 << 20  # bytes of inputs that may be finished, and wait for their round
MOST_AHEAD: Final = 8  # tasks that may, however small they are


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
        """Return what a task is likely to take."""
        return sum(self.pieces[index].nbytes for index in self.tasks[task])


class Workers:
    """The threads of a rank, which go on with its tasks in order, and not too far ahead."""

    def __init__(self, work: Work, tasks: range, threads: int) -> None:
        self._work = work
        self._left: Iterator[int] = iter(tasks)
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="ingest")
        self._going: deque[Future[Part]] = deque()
        largest = max(map(work.bytes_of, tasks), default=0)
        self._most = threads + min(max(AHEAD // max(largest, 1), 1), MOST_AHEAD)
        self._blocks = Blocks()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for left in self._going:
            if not left.cancelled() and left.exception() is None:
                left.result().close()

    def take(self) -> Part | None:
        """Return what came of this rank's next task; None if there is none left."""
        while len(self._going) < self._most and (task := next(self._left, None)) is not None:
            self._going.append(self._pool.submit(self._run, task))
        return self._going.popleft().result() if self._going else None

    def _run(self, task: int) -> Part:
        work = self._work
        directory = work.store.output.directory if work.spools else None
        part = Part(work.store.dtype, self._blocks, directory)
        for index in work.tasks[task]:
            if self._stop.is_set():
                break
            piece = work.pieces[index]
            entry = work.inputs[piece.source]
            digest = digest_range(entry.path, piece.first_byte, piece.last_byte, self._stop.is_set)
            part.pieces.append(PieceFacts(digest))
            if not work.reader.read(entry, piece, part, self._stop.is_set):
                break
        return part
