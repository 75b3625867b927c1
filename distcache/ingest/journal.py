"""The journal of an ingest: a line of JSON for each task that is done, in order.

A line that a crash tore ends what is read. What it says is compared with the files before it is
believed, so neither has to reach the disk in any order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import msgspec

from distcache.files import no_space_as_error, open_regular
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
        with open(temporary, "wb") as stream:
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
            os.write(self._descriptor, msgspec.json.encode(record) + b"\n")


def read_journal(path: Path) -> list[TaskRecord]:
    """Return the records of the tasks that are done, from the first one on without a gap."""
    return list(_records(path))


def _records(path: Path) -> Iterator[TaskRecord]:
    try:
        descriptor = open_regular(path, follow=False)
    except FileNotFoundError:
        return
    with open(descriptor, "rb") as stream:
        for task, line in enumerate(stream):
            try:
                record = msgspec.json.decode(line, type=TaskRecord)
            except msgspec.MsgspecError:
                return
            if record.task != task:
                return
            yield record
