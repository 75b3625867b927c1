"""The journal: what a job has finished, so that the next one can resume.

It has one JSON object per line; one write appends one or more lines. A line that a crash has torn
is skipped. Entries are verified against the files before use, so neither has to reach the disk in
any order.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

import msgspec

from distcache.storage.files import is_plain_file, no_space_as_error, open_regular, recreate

Record = TypeVar("Record")


class Journal(AbstractContextManager["Journal"]):
    """A journal that is open for appending.

    Parameters
    ----------
    path : path
        Replaced by a new file.
    records : sequence of struct
        Records to begin with.
    """

    def __init__(self, path: Path, records: Sequence[msgspec.Struct] = ()) -> None:
        self._path = path
        temporary = path.with_suffix(".new")
        with no_space_as_error(path), recreate(temporary) as stream:
            for record in records:
                stream.write(msgspec.json.encode(record) + b"\n")
        os.replace(temporary, path)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def append(self, *records: msgspec.Struct) -> None:
        """Add a line for each record, in one write.

        Raises
        ------
        NoSpace
            If the disk is full; a torn line is ended then, so that the next one is separate.
        """
        lines = b"".join(msgspec.json.encode(record) + b"\n" for record in records)
        with no_space_as_error(self._path):
            if os.write(self._descriptor, lines) < len(lines):
                os.write(self._descriptor, b"\n")
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))


def read_journal(path: str | Path, kind: type[Record]) -> Iterator[Record]:
    """Yield the records of a journal, without those that are not complete.

    Parameters
    ----------
    path : path
        There need not be one.
    kind : type
        Type of a record.
    """
    if not is_plain_file(path):
        return
    descriptor = open_regular(path, follow=False)
    with open(descriptor, "rb") as stream:
        for line in stream:
            try:
                yield msgspec.json.decode(line, type=kind)
            except (msgspec.MsgspecError, ValueError, RecursionError):
                continue
