"""The result of a task: documents of tokens, and facts about each piece."""

from __future__ import annotations

import operator
import tempfile
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import xxhash
from msgspec.structs import astuple
from numpy.typing import NDArray

from distcache.corpus.kept_runs import RunEncoder

LISTED_PER_PIECE: Final = 1000  # invalid rows of a piece whose places are kept; all are counted
SPOOL: Final = 64 << 20  # bytes of tokens in memory, if they may go to a file
BLOCK: Final = 4 << 20  # bytes


class Problem(msgspec.Struct, frozen=True):
    """An invalid row, or one that ends the ingest."""

    place: int  # number of the row in the piece or in the row group, from 0
    reason: str  # problem of the row
    # first byte of the row in the file, and its row group
    byte: int | None = None
    group: int | None = None
    fatal: bool = False  # whether it ends the ingest, though the row is valid


class Counts(msgspec.Struct, frozen=True, array_like=True):
    """Numbers of documents, sequences and tokens; also a position, by what precedes it."""

    documents: int = 0
    sequences: int = 0
    tokens: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*map(operator.add, astuple(self), astuple(other)))

    def __sub__(self, other: Counts) -> Counts:
        return Counts(*map(operator.sub, astuple(self), astuple(other)))


class PieceFacts(msgspec.Struct):
    """What was read from a piece."""

    digest: str  # XXH3-128 of its bytes
    # Rows that are empty, or skipped because of an error, are no documents.
    rows: int = 0
    empty: int = 0
    skipped: int = 0
    documents: int = 0
    sequences: int = 0
    tokens: int = 0
    lines: int = 0  # lines, with blank ones, to count those of later pieces
    # texts of them that a faster engine left to the tokenizer's library, and that both encoded
    by_library: int = 0
    compared: int = 0
    # Invalid rows, and as the last one what ends the ingest. One may represent the rest of a row
    # group.
    problems: list[Problem] = []
    # Rows that became documents, by their places in the piece (lines, with blank ones; else rows):
    # the code of `distcache.corpus.kept_runs`, and how it continues.
    kept: bytes = b""
    following: int = 0
    run: int = 0

    def keep(self, places: NDArray[np.int64]) -> None:
        """Note the places of further rows that become documents."""
        encoder = RunEncoder(self.following, self.run)
        self.kept += encoder.add(places)
        self.following, self.run = encoder.following, encoder.run

    @property
    def places(self) -> int:
        """Lines with blank ones, or rows."""
        return max(self.lines, self.rows)

    @property
    def size(self) -> Counts:
        """Counts of its documents."""
        return Counts(self.documents, self.sequences, self.tokens)


class Sink:
    """Receives documents from readers.

    Parameters
    ----------
    dtype : dtype
        The token type.

    Attributes
    ----------
    pieces : list of PieceFacts
        Facts of the pieces read so far, in order; the last one may be incomplete.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self.pieces: list[PieceFacts] = []

    def append(
        self,
        tokens: NDArray[Any],
        lengths: NDArray[np.int32],
        counts: NDArray[np.int32] | None = None,
    ) -> None:
        """Add whole documents to the last piece; the tokens are copied.

        Parameters
        ----------
        tokens : ndarray, shape (tokens,)
            Tokens in the type of the corpus, one document after the other.
        lengths : ndarray of int32, shape (sequences,)
            Tokens of each sequence.
        counts : ndarray of int32, shape (documents,), or None
            Sequences of each document; by default one.
        """
        raise TypeError(f"{type(self).__name__} keeps no documents")


class Part(Sink, AbstractContextManager["Part"]):
    """The documents of a task, in memory or, if they are many, in a nameless file.

    Parameters
    ----------
    dtype : dtype
        The token type.
    blocks : Blocks
        Memory for the tokens; it goes back when the part is closed.
    directory : Path or None
        Directory for such a file; None to keep all in memory.
    """

    def __init__(self, dtype: np.dtype[Any], blocks: Blocks, directory: Path | None) -> None:
        super().__init__(dtype)
        self._pool = blocks
        self._directory = directory
        self._blocks: list[NDArray[np.uint8]] = []
        self._room = 0
        self._file: Any = None
        self._lengths: list[NDArray[np.int32]] = []
        self._counts: list[NDArray[np.int32]] = []
        self._digest = xxhash.xxh3_64()

    def append(
        self,
        tokens: NDArray[Any],
        lengths: NDArray[np.int32],
        counts: NDArray[np.int32] | None = None,
    ) -> None:
        """Add whole documents to the last piece; the tokens are copied."""
        counts = np.ones(len(lengths), np.int32) if counts is None else counts
        piece = self.pieces[-1]
        piece.documents += len(counts)
        piece.sequences += len(lengths)
        piece.tokens += len(tokens)
        self._lengths.append(lengths)
        self._counts.append(counts)
        data = tokens.view(np.uint8)
        self._digest.update(data.data)
        while data.size:
            data = self._keep(data)

    def _keep(self, data: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Copy as much as the last block has room for, and return the rest."""
        if not self._room:
            if self._directory is not None and len(self._blocks) * BLOCK >= SPOOL:
                self._spill()
            self._blocks.append(self._pool.take())
            self._room = BLOCK
        begin = BLOCK - self._room
        size = min(self._room, data.size)
        self._blocks[-1][begin : begin + size] = data[:size]
        self._room -= size
        return data[size:]

    @property
    def held(self) -> int:
        """Bytes of memory of the tokens."""
        return len(self._blocks) * BLOCK

    def spill(self) -> None:
        """Move the tokens to a file, if they may go there."""
        if self._directory is not None:
            self._spill()

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115
        for block in self._used_blocks():
            self._file.write(block.data)
        self._pool.give(self._blocks)
        self._blocks, self._room = [], 0

    @property
    def digest(self) -> str:
        """XXH3-64 of the tokens' bytes, then of the lengths and of the counts of sequences."""
        digest = self._digest.copy()
        digest.update(self.lengths.data)
        digest.update(self.counts.data)
        return digest.hexdigest()

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Tokens of each sequence, of shape (sequences,)."""
        return np.concatenate([np.empty(0, np.int32), *self._lengths])

    @property
    def counts(self) -> NDArray[np.int32]:
        """Sequences of each document, of shape (documents,)."""
        return np.concatenate([np.empty(0, np.int32), *self._counts])

    def blocks(self) -> Iterator[NDArray[np.uint8]]:
        """Yield the tokens' bytes, piece by piece."""
        if self._file is not None:
            self._file.seek(0)
            while content := self._file.read(BLOCK):
                yield np.frombuffer(content, np.uint8)
        yield from self._used_blocks()

    def _used_blocks(self) -> Iterator[NDArray[np.uint8]]:
        for index, block in enumerate(self._blocks):
            last = index == len(self._blocks) - 1
            yield block[: BLOCK - self._room] if last else block

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the memory and the file."""
        self._pool.give(self._blocks)
        self._blocks = []
        if self._file is not None:
            self._file.close()


def digest_of(
    tokens: Iterator[NDArray[np.uint8]], lengths: NDArray[np.int32], counts: NDArray[np.int32]
) -> str:
    """Return the digest of what is in a corpus, as `Part.digest` computes it."""
    digest = xxhash.xxh3_64()
    for block in tokens:
        digest.update(block.data)
    digest.update(lengths.data)
    digest.update(counts.data)
    return digest.hexdigest()


class Blocks:
    """A pool of blocks of `BLOCK` bytes, shared by the threads of a rank."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[NDArray[np.uint8]] = []

    def take(self) -> NDArray[np.uint8]:
        """Return an uninitialized block."""
        with self._lock:
            if self._free:
                return self._free.pop()
        return np.empty(BLOCK, np.uint8)

    def give(self, blocks: list[NDArray[Any]]) -> None:
        """Return blocks to the pool."""
        with self._lock:
            self._free += blocks
