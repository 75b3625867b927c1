"""Which documents of a corpus a selection keeps, and how it cuts them: pure functions."""

from __future__ import annotations

import os
import re
import tokenize
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from distcache.corpus.idx import Idx
from distcache.edit.view_writer import Kept
from distcache.errors import ConfigError
from distcache.option import Option
from distcache.storage.files import open_regular
from distcache.storage.units import parse_tokens

# Exceptions that NumPy raises for a malformed file of numbers; it evaluates the header of a `.npy`.
MALFORMED: Final = (
    ValueError,
    EOFError,
    OverflowError,
    SyntaxError,
    TypeError,
    MemoryError,
    tokenize.TokenError,
)
NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}")
MAX_LINE_CHARACTERS: Final = 64  # characters of a number, at most
BLOCK_DOCUMENTS: Final = 1 << 17  # at a time: they stay in the processor's cache
# Of splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
MULTIPLIER_1: Final = np.uint64(0xBF58476D1CE4E5B9)
MULTIPLIER_2: Final = np.uint64(0x94D049BB133111EB)
NO_END: Final = 1 << 62  # of a range of documents, if none is given


def parse_range(text: str) -> tuple[int, int]:
    """Parse ``A:B``, of which either may be left out.

    Raises
    ------
    ConfigError
        If it has another form.
    """
    found = re.fullmatch(r"(\d{0,18}):(\d{0,18})", text.strip())
    if found is None:
        raise ConfigError(f"--range {text!r}: expected A:B, for example 0:1000")
    return int(found[1] or 0), int(found[2] or NO_END)


class Selection(msgspec.Struct, frozen=True):
    """What is kept of a corpus: documents that all conditions hold for."""

    documents: Annotated[
        tuple[int, int] | None,
        Option("Documents from A to below B, from 0.", "--range", parse_range, metavar="A:B"),
    ] = None
    min_length: Annotated[int | None, Option("Least tokens of a document.", least=0)] = None
    max_length: Annotated[int | None, Option("Most tokens of a document.", least=0)] = None
    # Whether a document is taken depends on the seed and its number only, so that a larger sample
    # of the same seed holds a smaller one.
    sample: Annotated[
        float | None, Option("Each document with this probability, for example 0.1.")
    ] = None
    tokens: Annotated[
        int | None,
        Option(
            "Documents at random that have about so many tokens, such as 1e9.",
            "--sample-tokens",
            parse_tokens,
            metavar="N",
        ),
    ] = None
    seed: Annotated[
        int, Option("Seed of --sample and --sample-tokens.", least=0, most=2**64 - 1)
    ] = 1234

    def problems(self) -> list[str]:
        """Return what is wrong with it."""
        found = []
        if self.documents is not None and not 0 <= self.documents[0] < self.documents[1]:
            found.append(
                f"--range {self.documents[0]}:{self.documents[1]}: expected A:B with A below B"
            )
        longest, least = self.max_length, self.min_length
        if longest is not None and least is not None and longest < least:
            found.append(f"--max-length {longest}: is below --min-length {least}")
        if not 0 <= self.seed < 1 << 64:
            found.append(f"--seed {self.seed}: expected at least 0, and less than 2**64")
        if self.sample is not None and not 0 < self.sample <= 1:
            found.append(f"--sample {self.sample}: expected more than 0, and at most 1")
        if self.tokens is not None and self.tokens < 1:
            found.append(f"--sample-tokens {self.tokens}: expected at least 1 token")
        return found


def select_documents(
    idx: Idx,
    begin: int,
    end: int,
    selection: Selection,
    rows: NDArray[np.int64] | None = None,
    drop: NDArray[np.int64] | None = None,
) -> Iterator[Kept]:
    """Yield what is kept of documents [begin, end), in their order.

    Parameters
    ----------
    idx : Idx
        Index of the parent, which is sound.
    begin, end : int
        Numbers of documents.
    selection : Selection
        Selection without problems.
    rows, drop : ndarray of int64, or None
        Numbers of the documents to keep, and to leave out; ascending, each once.
    """
    for first in range(begin, end, BLOCK_DOCUMENTS):
        last = min(first + BLOCK_DOCUMENTS, end)
        bounds = np.array(idx.bounds[first : last + 1])
        some = slice(int(bounds[0]), int(bounds[-1]))
        lengths = np.array(idx.lengths[some])
        counts = np.diff(bounds)
        keep = _by_number(first, last, selection, rows, drop)
        if selection.min_length is not None or selection.max_length is not None:
            keep &= _by_length(_tokens(lengths, bounds - bounds[0]), selection)
        sequences = np.repeat(keep, counts)
        yield Kept(
            counts[keep],
            lengths[sequences],
            idx.offsets[some][sequences],
            None if idx.modes is None else idx.modes[some][sequences],
        )


def _tokens(lengths: NDArray[np.int32], bounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the tokens of each document."""
    sums = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=sums[1:])
    tokens: NDArray[np.int64] = np.diff(sums[bounds])
    return tokens


def _by_number(
    first: int,
    last: int,
    selection: Selection,
    rows: NDArray[np.int64] | None,
    drop: NDArray[np.int64] | None,
) -> NDArray[np.bool_]:
    """Return which of documents [first, last) are kept for their numbers."""
    keep = np.full(last - first, rows is None)
    if rows is not None:
        keep[_within(rows, first, last)] = True
    if drop is not None:
        keep[_within(drop, first, last)] = False
    if selection.documents is not None:
        low, high = selection.documents
        keep[: max(low - first, 0)] = False
        keep[max(high - first, 0) :] = False
    if selection.sample is not None and selection.sample < 1:
        numbers = np.arange(first, last, dtype=np.uint64)
        limit = np.uint64(int(selection.sample * 2.0**64))
        keep &= hash_numbers(numbers, selection.seed) < limit
    return keep


def _within(numbers: NDArray[np.int64], first: int, last: int) -> NDArray[np.int64]:
    low, high = np.searchsorted(numbers, [first, last])
    return numbers[low:high] - first


def _by_length(tokens: NDArray[np.int64], selection: Selection) -> NDArray[np.bool_]:
    keep = np.ones(len(tokens), bool)
    if selection.min_length is not None:
        keep &= tokens >= selection.min_length
    if selection.max_length is not None:
        keep &= tokens <= selection.max_length
    return keep


def hash_numbers(numbers: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """Return a hash of each number with a seed, evenly distributed: splitmix64, twice."""
    value = mix_bits(np.array([seed], np.uint64) + GOLDEN)[0]
    return mix_bits((numbers + np.uint64(1)) * GOLDEN ^ value)


def mix_bits(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return each number with its bits mixed: the finalizer of splitmix64."""
    value = (value ^ (value >> np.uint64(30))) * MULTIPLIER_1
    value = (value ^ (value >> np.uint64(27))) * MULTIPLIER_2
    return value ^ (value >> np.uint64(31))


def numbers_in(path: str | Path) -> NDArray[np.int64]:
    """Read numbers of documents: a `.npy` of integers, or text with one in each line.

    Returns
    -------
    ndarray of int64
        Ascending.

    Raises
    ------
    ConfigError
        If the file cannot be read, is something else, or names a number twice.
    """
    try:
        numbers = _read_numbers(str(path))
    except (OSError, *MALFORMED) as error:
        raise ConfigError(
            f"{path}: cannot be read as numbers of documents, one in each line or as .npy: {error}"
        ) from error
    found = np.sort(numbers.astype(np.int64))
    if len(found) and found[0] < 0:
        raise ConfigError(f"{path}: {found[0]} is not the number of a document; they start at 0")
    twice = np.flatnonzero(found[1:] == found[:-1])
    if len(twice):
        raise ConfigError(
            f"{path}: names document {found[twice[0]]} twice; to repeat documents, give the "
            "corpus more weight"
        )
    return found


def _read_numbers(path: str) -> NDArray[Any]:
    if not path.endswith(".npy"):
        with os.fdopen(open_regular(path), encoding="utf-8-sig") as stream:
            lines = iter(partial(stream.readline, MAX_LINE_CHARACTERS), "")
            return np.array([_number(line) for line in lines if line.strip()], np.int64)
    os.close(open_regular(path))  # another kind of file could block indefinitely
    numbers: NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
    if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
        raise ValueError("expected one dimension of integers")
    if len(numbers) and numbers.max() > np.iinfo(np.int64).max:
        raise ValueError("a number is 2**63 or more")
    return numbers


def _number(line: str) -> int:
    if len(line) == MAX_LINE_CHARACTERS and not line.endswith("\n"):
        raise ValueError(f"a line has {MAX_LINE_CHARACTERS} characters and more")
    if NUMBER.fullmatch(line.strip()) is None:
        raise ValueError(f"{line.strip()[:40]!r} is not a number; expected one a line")
    return int(line)
