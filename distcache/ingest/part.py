"""What a worker makes of a task: tokens in documents, and what there is to say of each piece."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

__all__ = ["Part", "PieceFacts", "Problem", "digest_of"]

SPOOL: Final = 64 << 20  # bytes of tokens that stay in memory, if they may go to a file
BLOCK: Final = 16 << 20  # bytes that are read back at a time


class Problem(msgspec.Struct, frozen=True):
    """What is wrong with a row.

    Attributes
    ----------
    place : int
        Its number in the piece or in the row group, from 0.
    reason : str
        Why it is left out.
    byte, group : int or None
        Where it begins in the file; its row group.
    """

    place: int
    reason: str
    byte: int | None = None
    group: int | None = None


class PieceFacts(msgspec.Struct):
    """What a piece came to.

    Attributes
    ----------
    digest : str
        XXH3-128 of its bytes.
    rows, empty, documents, sequences, tokens : int
        How many. Rows that are empty are no documents.
    lines : int
        How many lines, blank ones as well, so that those of later pieces can be counted.
    problems : list of Problem
        All rows that are wrong, or, if that ends the ingest, the first.
    """

    digest: str
    rows: int = 0
    empty: int = 0
    documents: int = 0
    sequences: int = 0
    tokens: int = 0
    lines: int = 0
    problems: list[Problem] = []


class Part:
    """The documents of a task, in memory or, if they are many, in a nameless file.

    Parameters
    ----------
    dtype : dtype
        The token type.
    directory : Path or None
        Where such a file may be; None to keep all in memory.

    Attributes
    ----------
    pieces : list of PieceFacts
        Of the task's pieces, in order; the last one may be unfinished.
    tokens : int
        How many there are.
    """

    def __init__(self, dtype: np.dtype[Any], directory: Path | None) -> None:
        self.dtype = dtype
        self.tokens = 0
        self.pieces: list[PieceFacts] = []
        self._directory = directory
        self._arrays: list[NDArray[Any]] = []
        self._held = 0
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
        """Add whole documents to the last piece.

        Parameters
        ----------
        tokens : ndarray, shape (tokens,)
            Of the token type, one document after the other.
        lengths : ndarray of int32, shape (sequences,)
            Tokens of each sequence.
        counts : ndarray of int32, shape (documents,), or None
            Sequences of each document; by default one.
        """
        counts = np.ones(len(lengths), np.int32) if counts is None else counts
        piece = self.pieces[-1]
        piece.documents += len(counts)
        piece.sequences += len(lengths)
        piece.tokens += len(tokens)
        self.tokens += len(tokens)
        self._lengths.append(lengths)
        self._counts.append(counts)
        if len(tokens):
            self._digest.update(tokens.data)
            self._keep(tokens)

    def _keep(self, tokens: NDArray[Any]) -> None:
        self._arrays.append(tokens)
        self._held += tokens.nbytes
        if self._directory is None or self._held <= SPOOL:
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115
        for array in self._arrays:
            self._file.write(array.data)
        self._arrays, self._held = [], 0

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

    def blocks(self) -> Iterator[bytes | NDArray[Any]]:
        """Yield the tokens' bytes, piece by piece."""
        if self._file is not None:
            self._file.seek(0)
            while block := self._file.read(BLOCK):
                yield block
        yield from self._arrays

    def __enter__(self) -> Part:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()


def digest_of(tokens: Iterator[Any], lengths: NDArray[np.int32], counts: NDArray[np.int32]) -> str:
    """Return the digest of what is in a corpus, as `Part.digest` has it."""
    digest = xxhash.xxh3_64()
    for block in tokens:
        digest.update(block)
    digest.update(lengths.data)
    digest.update(counts.data)
    return digest.hexdigest()
