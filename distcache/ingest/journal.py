"""The journal of an ingest: a line of JSON for each task that is done, in order.

A line that a crash tore ends what is read. What it says is compared with the files before it is
believed, so neither has to reach the disk in any order.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

import msgspec

from distcache.files import create_anew, no_space_as_error, open_regular
from distcache.ingest.placing import TaskRecord

__all__ = ["Journal", "read_journal"]


class Journal:
    """A journal that is open for appending.

    Parameters
    ----------
    path : Path
        Made anew, beginning with the records.
    records : sequence of TaskRecord
        Of the tasks that are done.
    """

    def __init__(self, path: Path, records: list[TaskRecord]) -> None:
        self._path = path
        temporary = path.with_suffix(".new")
        with no_space_as_error(path), create_anew(temporary) as stream:
            for record in records:
                stream.write(msgspec.json.encode(record) + b"\n")
        os.replace(temporary, path)
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(path, flags)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)

    def append(self, record: TaskRecord) -> None:
        """Add a line, in one write."""
        with no_space_as_error(self._path):
            line = msgspec.json.encode(record) + b"\n"
            if os.write(self._descriptor, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))


def read_journal(path: Path, tasks: Sequence[range]) -> list[TaskRecord]:
    """Return the records of the tasks that are done, from the first one on without a gap.

    Parameters
    ----------
    path : Path
        Of the journal; there need not be one.
    tasks : sequence of range
        The pieces of each task.
    """
    pairs = zip(_records(path), tasks, strict=False)
    fitting = itertools.takewhile(lambda pair: len(pair[0].pieces) == len(pair[1]), pairs)
    return [record for record, _ in fitting]


def _records(path: Path) -> Iterator[TaskRecord]:
    try:
        descriptor = open_regular(path, follow=False)
    except FileNotFoundError:
        return
    with open(descriptor, "rb") as stream:
        for task, line in enumerate(stream):
            try:
                record = msgspec.json.decode(line, type=TaskRecord)
            except (msgspec.MsgspecError, ValueError, RecursionError):
                return
            if record.task != task:
                return
            yield record
