"""The rounds of an ingest: some tasks in order, of which each rank writes its own.

The places of a round's documents follow from those before them, so that every byte is written
where it stays, once, and nothing is merged. Workers go on with tasks of later rounds meanwhile: a
task that takes long, as that of a large compressed file, keeps nobody from reading.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from distcache.errors import CorpusError
from distcache.ingest.journal import Journal
from distcache.ingest.locations import Locator
from distcache.ingest.part import Part, PieceFacts
from distcache.ingest.placing import Counts, Segment, TaskRecord, place, segments_of
from distcache.ingest.workers import Work, Workers
from distcache.progress import Progress
from distcache.ranks.agreement import from_rank_0, together
from distcache.ranks.communicator import Communicator

__all__ = ["run_rounds"]


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
    """Do all tasks that are not done. Collective.

    Parameters
    ----------
    communicator : Communicator
        Of all ranks.
    work : Work
        All tasks.
    done : list of TaskRecord
        Of the first tasks.
    owners : sequence of int
        The rank that does each task.
    journal : Journal or None
        Of rank 0.
    threads : int
        Workers of each rank.
    progress : Progress
        Told of the bytes that all ranks have read.

    Returns
    -------
    list of TaskRecord
        Of all tasks, on all ranks.

    Raises
    ------
    CorpusError
        On all ranks: the first row that is wrong, if that is to end the ingest.
    """
    records = list(done)
    locator = Locator(work.inputs, work.pieces)
    for record in done:
        for piece, facts in zip(work.tasks[record.task], record.pieces, strict=True):
            locator.skipped(piece, facts)
    left = range(len(done), len(work.tasks))
    own = [task for task in left if owners[task] == communicator.rank]
    with Workers(work, own, threads, progress.note) as workers:
        for first in left[:: communicator.size]:
            tasks = range(first, min(first + communicator.size, len(work.tasks)))
            made = _round(communicator, work, records, tasks, owners, workers, locator)
            records += made
            from_rank_0(communicator, partial(_append, journal, made), None, "the journal")
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
    """Take the next tasks, agree where their documents go, and write them there. Collective."""
    own = [task for task in tasks if owners[task] == communicator.rank]
    with contextlib.ExitStack() as stack:

        def take() -> dict[int, Part]:
            return {task: stack.enter_context(workers.take()) for task in own}

        parts = together(communicator, take, "reading inputs")
        mine = {task: _report_of(part) for task, part in parts.items()}
        found = communicator.gather_all(mine, dict[int, _Report], "what came of inputs")
        reports = [found[owners[task]][task] for task in tasks]
        for task, entry in zip(tasks, reports, strict=True):
            _require_right(work, task, entry, locator)
        made = _place(communicator, work, records, tasks, owners, reports, parts)

        def write() -> None:
            for record in made:
                if record.task in parts:
                    work.store.write(parts[record.task], record.segments)

        together(communicator, write, "writing tokens")
    return made


def _report_of(part: Part) -> _Report:
    size = Counts(len(part.counts), len(part.lengths), part.tokens)
    return _Report(part.pieces, part.digest, size)


def _require_right(work: Work, task: int, report: _Report, locator: Locator) -> None:
    for piece, facts in zip(work.tasks[task], report.pieces, strict=False):
        wrong = locator.skipped(piece, facts)
        if wrong and work.fail:
            error = CorpusError(str(wrong[0]))
            error.agreed = True  # all ranks have all reports
            raise error


def _place(
    communicator: Communicator,
    work: Work,
    records: list[TaskRecord],
    tasks: range,
    owners: Sequence[int],
    reports: list[_Report],
    parts: Mapping[int, Part],
) -> list[TaskRecord]:
    """Return the records of a round. Collective, as far as tasks must be cut."""
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
            shares = communicator.gather_all(mine, list[Segment], "where corpora end")
            segments = shares[owners[task]]
        made.append(TaskRecord(task, report.pieces, report.digest, segments))
        at = segments[-1] if segments else at
    return made
