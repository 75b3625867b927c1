"""What was read from a piece: documents of tokens, and facts about it."""

from __future__ import annotations

import operator
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import xxhash
from msgspec.structs import astuple
from numpy.typing import NDArray

from distcache.corpus.kept_runs import RunEncoder
from distcache.storage.files import no_space_as_error, read_range, write_range

LISTED_PER_PIECE: Final = 1000  # invalid rows of a piece whose places are kept; all are counted
SPOOL_BYTES: Final = 64 << 20  # bytes of tokens in memory, if they may go to a file
BLOCK_BYTES: Final = 4 << 20  # bytes
MIN_BLOCK_BYTES: Final = 4096


class Problem(msgspec.Struct, frozen=True):
    """An invalid row, or one that ends the ingest."""

    place: int  # number of the row in the piece or in the row group, from 0
    reason: str  # problem of the row
    # first byte of the row in the file, and its row group
    byte: int | None = None
    group: int | None = None
    fatal: bool = False  # whether it ends the ingest, though the row is valid


class ReadingEnds(Exception):
    """The rest of a piece is not read: of an invalid row, or because the work is to stop."""


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
    ended: int = 0  # documents of text whose own last token is the one that ends documents
    masked: bool = False  # whether some of its tokens have no loss
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

    def reject(self, problems: Sequence[Problem]) -> None:
        """Count invalid rows, and note them as far as there is room."""
        self.skipped += len(problems)
        self.problems += problems[: max(LISTED_PER_PIECE - len(self.problems), 0)]

    @property
    def places(self) -> int:
        """Lines with blank ones, or rows."""
        return max(self.lines, self.rows)

    @property
    def size(self) -> Counts:
        """Counts of its documents."""
        return Counts(self.documents, self.sequences, self.tokens)


class DocumentBuffer(AbstractContextManager["DocumentBuffer"]):
    """The documents of a piece, in memory or, if they are many, in the spool.

    Parameters
    ----------
    dtype : dtype
        The token type.
    facts : PieceFacts
        Facts of the piece, to which readers add.
    memory : Memory
        Memory for the tokens; it goes back when the buffer is closed.
    spool : Spool or None
        File for tokens that are many; None to keep all in memory.
    expected : int
        Bytes that the tokens probably have; the memory of a small piece is as small.
    """

    def __init__(
        self,
        dtype: np.dtype[Any],
        facts: PieceFacts,
        memory: Memory,
        spool: Spool | None = None,
        expected: int = 0,
    ) -> None:
        self.dtype = dtype
        self.facts = facts
        self._memory = memory
        self._spool = spool
        self._expected = max(expected, MIN_BLOCK_BYTES)
        self._blocks: list[NDArray[np.uint8]] = []
        self._room = 0  # bytes that are left in the last block
        self._spooled: list[tuple[int, int]] = []  # where the spool has tokens
        self._lengths: list[NDArray[np.int32]] = []
        self._counts: list[NDArray[np.int32]] = []
        self._losses: list[NDArray[np.uint8]] = []
        self._digest = xxhash.xxh3_64()

    def add(
        self,
        tokens: NDArray[Any],
        lengths: NDArray[np.int32],
        counts: NDArray[np.int64],
        places: NDArray[np.int64],
        losses: NDArray[np.uint8] | None = None,
        *,
        drop_empty: bool,
    ) -> None:
        """Add rows, of which those without tokens are dropped or kept.

        Parameters
        ----------
        tokens, lengths : ndarray
            Tokens, and tokens of each sequence, as of `append`.
        counts : ndarray of int64, shape (rows,)
            Sequences of each row.
        places : ndarray of int64, shape (rows,)
            Number of each row in the piece.
        losses : ndarray of uint8, shape (tokens,), or None
            Loss of each token, as of `append`.
        drop_empty : bool
            Whether rows without sequences become no documents.
        """
        filled = counts > 0
        self.facts.empty += int(np.count_nonzero(~filled))
        if drop_empty:
            counts, places = counts[filled], places[filled]
        self.facts.keep(places)
        self.append(tokens, lengths, counts.astype(np.int32), losses)

    def append(
        self,
        tokens: NDArray[Any],
        lengths: NDArray[np.int32],
        counts: NDArray[np.int32],
        losses: NDArray[np.uint8] | None = None,
    ) -> None:
        """Add whole documents; the tokens are copied.

        Parameters
        ----------
        tokens : ndarray, shape (tokens,)
            Tokens in the type of the corpus, one document after the other.
        lengths : ndarray of int32, shape (sequences,)
            Tokens of each sequence.
        counts : ndarray of int32, shape (documents,)
            Sequences of each document.
        losses : ndarray of uint8, shape (tokens,), or None
            1 for each token that has a loss, and 0 for others; None if all have one.
        """
        if losses is not None and not self.facts.masked:
            self.facts.masked = True
            self._losses = [np.ones(self.facts.tokens, np.uint8)]
        if self.facts.masked:
            self._losses.append(np.ones(len(tokens), np.uint8) if losses is None else losses)
        self.facts.documents += len(counts)
        self.facts.sequences += len(lengths)
        self.facts.tokens += len(tokens)
        self._lengths.append(lengths)
        self._counts.append(counts)
        data = tokens.view(np.uint8)
        self._digest.update(data.data)
        while data.size:
            data = self._keep(data)

    def _keep(self, data: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Copy as much as the last block has room for, and return the rest."""
        if not self._room:
            if self.held >= SPOOL_BYTES:
                self.spill()
            self._blocks.append(self._memory.take(BLOCK_BYTES if self._blocks else self._expected))
            self._room = len(self._blocks[-1])
        begin = len(self._blocks[-1]) - self._room
        size = min(self._room, data.size)
        self._blocks[-1][begin : begin + size] = data[:size]
        self._room -= size
        return data[size:]

    @property
    def held(self) -> int:
        """Bytes of memory of the tokens."""
        return sum(map(len, self._blocks))

    def spill(self) -> None:
        """Move the tokens to the spool, if there is one."""
        if self._spool is not None:
            self._spooled += map(self._spool.add, self._used_blocks())
            self._memory.give(self._blocks)
            self._blocks, self._room = [], 0

    @property
    def digest(self) -> str:
        """XXH3-64 of the tokens' bytes, then of lengths, of counts of sequences, and of losses."""
        digest = self._digest.copy()
        for values in (self.lengths, self.counts, self.losses):
            digest.update(values.data)
        return digest.hexdigest()

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Tokens of each sequence, of shape (sequences,)."""
        return np.concatenate([np.empty(0, np.int32), *self._lengths])

    @property
    def counts(self) -> NDArray[np.int32]:
        """Sequences of each document, of shape (documents,)."""
        return np.concatenate([np.empty(0, np.int32), *self._counts])

    @property
    def losses(self) -> NDArray[np.uint8]:
        """Whether each token has a loss, of shape (tokens,); empty if all have one."""
        return np.concatenate([np.empty(0, np.uint8), *self._losses])

    def blocks(self) -> Iterator[NDArray[np.uint8]]:
        """Yield the tokens' bytes, block by block."""
        if self._spool is not None:
            yield from map(self._spool.read, self._spooled)
        yield from self._used_blocks()

    def _used_blocks(self) -> Iterator[NDArray[np.uint8]]:
        for index, block in enumerate(self._blocks):
            last = index == len(self._blocks) - 1
            yield block[: len(block) - self._room] if last else block

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the memory, and the room in the spool."""
        self._memory.give(self._blocks)
        self._blocks = []
        if self._spool is not None:
            self._spool.release(len(self._spooled))
        self._spooled = []


def digest_of(
    tokens: Iterator[NDArray[np.uint8]],
    lengths: NDArray[np.int32],
    counts: NDArray[np.int32],
    losses: NDArray[np.uint8],
) -> str:
    """Return the digest of what is in a corpus, as `DocumentBuffer.digest` computes it."""
    digest = xxhash.xxh3_64()
    for block in tokens:
        digest.update(block.data)
    for values in (lengths, counts, losses):
        digest.update(values.data)
    return digest.hexdigest()


class Memory:
    """A pool of blocks of `BLOCK_BYTES`, shared by the threads of a rank."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[NDArray[np.uint8]] = []

    def take(self, size: int) -> NDArray[np.uint8]:
        """Return an uninitialized block, which may be smaller than those of the pool."""
        if size < BLOCK_BYTES:
            return np.empty(size, np.uint8)
        with self._lock:
            if self._free:
                return self._free.pop()
        return np.empty(BLOCK_BYTES, np.uint8)

    def give(self, blocks: list[NDArray[Any]]) -> None:
        """Return blocks to the pool."""
        with self._lock:
            self._free += [block for block in blocks if len(block) == BLOCK_BYTES]


class Spool:
    """A nameless file for tokens that wait for their round, shared by the threads of a rank.

    It is truncated whenever nothing waits in it.

    Parameters
    ----------
    directory : Path
        Directory of the file.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: Any = None  # until something waits
        self._lock = threading.Lock()
        self._waiting = 0  # blocks
        self.size = 0  # bytes

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def add(self, block: NDArray[np.uint8]) -> tuple[int, int]:
        """Write a block, and return where it begins and ends."""
        with self._lock, no_space_as_error(self._directory):
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115
            begin = self.size
            self.size += len(block)
            self._waiting += 1
        with no_space_as_error(self._directory):
            write_range(self._file.fileno(), begin, block)
        return begin, begin + len(block)

    def read(self, place: tuple[int, int]) -> NDArray[np.uint8]:
        """Return a block."""
        return np.frombuffer(read_range(self._file.fileno(), *place), np.uint8)

    def release(self, blocks: int) -> None:
        """Free blocks that have been read."""
        with self._lock:
            self._waiting -= blocks
            if self.size and not self._waiting:
                self._file.truncate(0)
                self.size = 0
