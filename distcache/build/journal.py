"""The journal: what a build has finished, so that the next one need not build it again.

Each attempt and rank appends to a file of its own, one JSON object per line. A line that a crash
tore is not read. Nothing in a journal is believed before the arrays are read and compared with
it, so neither the file nor the arrays have to reach the disk in any order.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from types import TracebackType

import msgspec

from distcache.files import no_space_as_error, open_regular

__all__ = ["Journal", "Record", "read_journals"]


class Record(msgspec.Struct, frozen=True):
    """A finished section or blend.

    Attributes
    ----------
    item : int
        Index into `Plan.items`.
    digests : dict of str to str
        The digest of each of its arrays by name, in hexadecimal.
    """

    item: int
    digests: dict[str, str]


class Journal:
    """A journal that is open for appending.

    Parameters
    ----------
    path : str
        A new file.
    """

    def __init__(self, path: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._path = path
        self._descriptor = os.open(path, flags, 0o600)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)

    def append(self, record: Record) -> None:
        """Add a line, in one write."""
        line = msgspec.json.encode(record) + b"\n"
        with no_space_as_error(self._path):
            # A disk that is filling up writes a part: the line is torn, and so must not go on.
            if os.write(self._descriptor, line) < len(line):
                os.write(self._descriptor, b"\n")
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)


def read_journals(paths: Iterable[str]) -> dict[int, Record]:
    """Return the last record of each item, passing over lines that are not whole.

    Parameters
    ----------
    paths : iterable of str
        Journals of all attempts and ranks.
    """
    records = {}
    for path in paths:
        with os.fdopen(open_regular(path), "rb") as stream:
            for line in stream:
                try:
                    record = msgspec.json.decode(line, type=Record)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    continue
                records[record.item] = record
    return records
