"""The files of unfinished corpora, to which ranks write documents, and from which they read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from distcache.ingest.document_buffer import BLOCK_BYTES, DocumentBuffer, digest_of
from distcache.ingest.output import Output
from distcache.ingest.pieces import PieceRecord, Segment
from distcache.storage.files import read_range
from distcache.storage.unfinished_file import UnfinishedFile

TOKENS: Final = "bin"
LENGTHS: Final = "lengths"
COUNTS: Final = "counts"
LOSS: Final = "loss"
MAX_OPEN_FILES: Final = 24  # open files; there may be thousands of corpora


class TokenStore:
    """Files of tokens, of lengths of sequences, and of sequences per document, for each corpus.

    The lengths and counts, int32, become the `.idx` when their number is known. A file of losses,
    a byte for each token, is only there if a piece leaves tokens out.

    Parameters
    ----------
    output : Output
        The paths.
    dtype : dtype
        The token type.
    """

    def __init__(self, output: Output, dtype: np.dtype[Any]) -> None:
        self.output = output
        self.dtype = dtype
        self._open: dict[tuple[int, str], UnfinishedFile] = {}

    def _file(self, shard: int, name: str) -> UnfinishedFile:
        key = shard, name
        file = self._open.pop(key, None)
        if file is None:
            if len(self._open) >= MAX_OPEN_FILES:
                self._settle(next(iter(self._open)))
            file = UnfinishedFile(self.output.part(shard, name), make=True)
        self._open[key] = file  # most recently used last
        return file

    def _settle(self, key: tuple[int, str]) -> None:
        self._open[key].sync()
        self._open.pop(key).close()

    def close(self) -> None:
        """Close all files."""
        while self._open:
            self._open.popitem()[1].close()

    def settle(self) -> None:
        """Sync everything that this rank wrote, and close the files until they are used again.

        Files opened after that show the bytes of other ranks on network filesystems.
        """
        while self._open:
            self._settle(next(iter(self._open)))

    def cut(self, shard: int, nbytes: int) -> None:
        """Truncate the tokens of a corpus."""
        self._file(shard, TOKENS).truncate(nbytes)

    def cut_losses(self, shard: int, tokens: int) -> None:
        """Truncate the losses of a corpus, or make as many."""
        self._file(shard, LOSS).truncate(tokens)

    def give_loss(self, segment: Segment) -> None:
        """Write that all tokens of a segment have a loss."""
        at, end = segment.first.tokens, segment.first.tokens + segment.size.tokens
        for begin in range(at, end, BLOCK_BYTES):
            size = min(BLOCK_BYTES, end - begin)
            self._file(segment.shard, LOSS).write(begin, np.ones(size, np.uint8))

    def write(self, buffer: DocumentBuffer, segments: list[Segment]) -> None:
        """Write the documents of a piece at their places."""
        self._write_tokens(buffer, segments)
        if buffer.facts.masked:
            losses, begin = buffer.losses, 0
            for segment in segments:
                size = segment.size.tokens
                own = losses[begin : begin + size]
                self._file(segment.shard, LOSS).write(segment.first.tokens, own)
                begin += size
        for name, values in ((LENGTHS, buffer.lengths), (COUNTS, buffer.counts)):
            begin = 0
            for segment in segments:
                first, size = _extent(segment, name)
                self._file(segment.shard, name).write(4 * first, values[begin : begin + size])
                begin += size

    def _write_tokens(self, buffer: DocumentBuffer, segments: list[Segment]) -> None:
        item = self.dtype.itemsize
        places = iter(segments)
        segment, done, nbytes = None, 0, 0
        for block in buffer.blocks():
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

    def holds(self, record: PieceRecord) -> bool:
        """Return whether the documents of a piece read back equal."""
        try:
            lengths = [self.values(segment, LENGTHS) for segment in record.segments]
            counts = [self.values(segment, COUNTS) for segment in record.segments]
            losses = map(self._losses, record.segments if record.facts.masked else ())
            empty = np.empty(0, np.int32)
            found = digest_of(
                self._tokens(record.segments),
                np.concatenate([empty, *lengths]),
                np.concatenate([empty, *counts]),
                np.concatenate([np.empty(0, np.uint8), *losses]),
            )
        except EOFError:
            return False
        return found == record.digest

    def _losses(self, segment: Segment) -> NDArray[np.uint8]:
        at, end = segment.first.tokens, segment.first.tokens + segment.size.tokens
        descriptor = self._file(segment.shard, LOSS).descriptor
        return np.frombuffer(read_range(descriptor, at, end), np.uint8)

    def _tokens(self, segments: list[Segment]) -> Iterator[NDArray[np.uint8]]:
        """Yield the tokens' bytes; the buffer is reused."""
        item = self.dtype.itemsize
        room = np.empty(BLOCK_BYTES, np.uint8)
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
    """Return the position of a segment's lengths or counts, and their number."""
    if name == LENGTHS:
        return segment.first.sequences, segment.size.sequences
    return segment.first.documents, segment.size.documents
