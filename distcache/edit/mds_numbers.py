"""Files of the lengths and pointers of shards that are being indexed."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from distcache.edit.mds_records import ShardRecord
from distcache.errors import DistcacheError
from distcache.storage.files import (
    closing_fd,
    no_space_as_error,
    open_regular,
    read_range,
    recreate,
    write_range,
)

AT_ONCE: Final = 1 << 20  # sequences whose lengths and pointers are in memory


class NewNumbers:
    """A file of lengths and pointers, to which the threads of a rank append."""

    def __init__(self, directory: Path, attempt: str, rank: int) -> None:
        self.name = f"numbers.{attempt}.{rank}"
        self._path = directory / self.name
        self._end = 0
        self._lock = threading.Lock()

    def __enter__(self) -> NewNumbers:
        self._stream = recreate(self._path)
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def append(self, data: bytes) -> int:
        """Write numbers, and return the byte at which they begin."""
        with self._lock:
            begin, self._end = self._end, self._end + len(data)
        with no_space_as_error(self._path):
            write_range(self._stream.fileno(), begin, data)
        return begin


class WrittenNumbers(ExitStack):
    """The lengths and pointers that this job and those before it have left in a directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory
        self._file = ""
        self._descriptor = -1

    def of(self, record: ShardRecord) -> tuple[NDArray[np.int32], NDArray[np.uint32]]:
        """Return the lengths and the pointers of a shard.

        Raises
        ------
        DistcacheError
            If they are not those that were written.
        """
        path = os.path.join(self._directory, record.file)
        if record.file != self._file:  # a file holds successive shards: one at a time is enough
            self.close()
            opened = open_regular(path, follow=False)
            self._file, self._descriptor = record.file, self.enter_context(closing_fd(opened))
        end = record.begin + 8 * record.sequences
        data = read_range(self._descriptor, record.begin, end)
        if xxhash.xxh3_128_hexdigest(data) != record.digest:
            raise DistcacheError(f"{path}: does not keep what is written to it; run again")
        middle = 4 * record.sequences
        return np.frombuffer(data[:middle], "<i4"), np.frombuffer(data[middle:], "<u4")


def by_sequences(records: Sequence[ShardRecord]) -> Iterator[list[ShardRecord]]:
    """Yield successive records, with about AT_ONCE sequences at a time."""
    ends = np.cumsum([0, *(record.sequences for record in records)])
    for _, some in itertools.groupby(range(len(records)), lambda i: int(ends[i]) // AT_ONCE):
        yield [records[i] for i in some]
