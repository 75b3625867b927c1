"""The files of unfinished corpora: every rank writes at its places, and reads back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from distcache.corpus.output import Output
from distcache.files import no_space_as_error, read_range, write_range
from distcache.flush import Flusher
from distcache.ingest.blocks import BLOCK
from distcache.ingest.part import Part, digest_of
from distcache.ingest.placing import Segment, TaskRecord

__all__ = ["COUNTS", "LENGTHS", "Store"]

TOKENS: Final = "bin"
LENGTHS: Final = "lengths"
COUNTS: Final = "counts"
MOST_OPEN: Final = 24  # files; there may be thousands of corpora


class Store:
    """The tokens, the lengths of sequences and the sequences of documents, a file each per corpus.

    The lengths and counts, int32, become the `.idx` when their number is known.

    Parameters
    ----------
    output : Output
        Where they lie.
    dtype : dtype
        The token type.
    """

    def __init__(self, output: Output, dtype: np.dtype[Any]) -> None:
        self.output = output
        self.dtype = dtype
        self._open: dict[str, _File] = {}

    def _file(self, shard: int, name: str) -> _File:
        path = self.output.part(shard, name)
        file = self._open.pop(path, None)
        if file is None:
            if len(self._open) >= MOST_OPEN:
                self._settle(next(iter(self._open)))
            file = _File(path)
        self._open[path] = file  # the last one is the one that was used last
        return file

    def _settle(self, path: str) -> None:
        with no_space_as_error(path):
            self._open[path].flusher.sync()
        self._open.pop(path).close()

    def close(self) -> None:
        """Close all files."""
        while self._open:
            self._open.popitem()[1].close()

    def settle(self) -> None:
        """Wait until all that this rank wrote is on disk, and close the files until they are used.

        A network filesystem shows another rank's bytes in files that are opened after that.
        """
        while self._open:
            self._settle(next(iter(self._open)))

    def cut(self, shard: int, nbytes: int) -> None:
        """Set the length of a corpus's tokens."""
        os.ftruncate(self._file(shard, TOKENS).descriptor, nbytes)

    def write(self, part: Part, segments: list[Segment]) -> None:
        """Write the documents of a task at their places."""
        with no_space_as_error(self.output.prefix):
            self._write_tokens(part, segments)
            for name, values in ((LENGTHS, part.lengths), (COUNTS, part.counts)):
                begin = 0
                for segment in segments:
                    first, size = _extent(segment, name)
                    some = values[begin : begin + size]
                    self._file(segment.shard, name).write(4 * first, some)
                    begin += size

    def _write_tokens(self, part: Part, segments: list[Segment]) -> None:
        item = self.dtype.itemsize
        places = iter(segments)
        segment, done, nbytes = None, 0, 0
        for block in part.blocks():
            data = block
            while data.size:
                if done == nbytes:
                    segment = next(places)
                    done, nbytes = 0, segment.size.tokens * item
                assert segment is not None
                piece = data[: nbytes - done]
                at = segment.first.tokens * item + done
                self._file(segment.shard, TOKENS).write(at, piece)
                done += len(piece)
                data = data[piece.size :]

    def values(self, segment: Segment, name: str) -> NDArray[np.int32]:
        """Read the lengths or the counts of a segment, int32.

        Raises
        ------
        EOFError
            If the file ends before.
        """
        begin, size = _extent(segment, name)
        descriptor = self._file(segment.shard, name).descriptor
        content = read_range(descriptor, 4 * begin, 4 * (begin + size))
        return np.frombuffer(content, "<i4")

    def holds(self, record: TaskRecord) -> bool:
        """Tell whether what a task wrote can be read back."""
        try:
            lengths = [self.values(segment, LENGTHS) for segment in record.segments]
            counts = [self.values(segment, COUNTS) for segment in record.segments]
            empty = np.empty(0, np.int32)
            found = digest_of(
                self._tokens(record.segments),
                np.concatenate([empty, *lengths]),
                np.concatenate([empty, *counts]),
            )
        except EOFError:
            return False
        return found == record.digest

    def _tokens(self, segments: list[Segment]) -> Iterator[NDArray[np.uint8]]:
        """Yield the tokens' bytes; what was yielded before is overwritten."""
        item = self.dtype.itemsize
        room = np.empty(BLOCK, np.uint8)
        for segment in segments:
            at = segment.first.tokens * item
            end = at + segment.size.tokens * item
            descriptor = self._file(segment.shard, TOKENS).descriptor
            while at < end:
                count = os.preadv(descriptor, [room[: end - at].data], at)
                if not count:
                    raise EOFError(f"the file ends at byte {at}, expected {end}")
                yield room[:count]
                at += count


def _extent(segment: Segment, name: str) -> tuple[int, int]:
    """Return the first of a segment's lengths or counts, and how many they are."""
    if name == LENGTHS:
        return segment.first.sequences, segment.size.sequences
    return segment.first.documents, segment.size.documents


class _File:
    """An open file of a corpus in the making."""

    def __init__(self, path: str) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self.descriptor = os.open(path, flags, 0o644)
        self.flusher = Flusher(self.descriptor)

    def write(self, offset: int, data: NDArray[Any]) -> None:
        write_range(self.descriptor, offset, data)
        self.flusher.written(data.nbytes)

    def close(self) -> None:
        self.flusher.close()
        os.close(self.descriptor)
