"""A corpus whose sequences are filled up to a multiple of tokens, for context parallelism.

Megatron's reader puts documents one after the other. So the padding is in the `.bin`, behind each
sequence, and is the end-of-document token: ``--eod-mask-loss`` takes the loss from it. Another
token would have a loss where the next document begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from distcache.corpus.corpus import CopySource
from distcache.corpus.idx import ITEM_TYPES
from distcache.corpus.receipt import TokenizerFacts
from distcache.corpus.view_bytes import token_pieces
from distcache.errors import ConfigError
from distcache.plan.config import MAX_MULTIPLE
from distcache.storage.threads import decodable

BLOCK_SEQUENCES: Final = 1 << 18  # at a time
MASK_BYTES: Final = 4 << 20  # bytes of a mask at a time


@decodable
class Padding(msgspec.Struct, frozen=True):
    """How sequences are filled up; options of a receipt."""

    multiple_of: Annotated[int, msgspec.Meta(ge=1, le=MAX_MULTIPLE)] = 1  # tokens
    eod: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0  # token behind them


@dataclass(frozen=True, eq=False, kw_only=True)
class PaddedSource(CopySource):
    """A corpus with its padding: lengths and bytes are those of the result."""

    unpadded: CopySource
    multiple_of: int  # tokens
    eod: int  # token of the padding


def padded_source(source: CopySource, padding: Padding) -> PaddedSource:
    """Return a corpus whose sequences are filled up; those without tokens stay empty.

    Raises
    ------
    ConfigError
        If a sequence becomes too long, or the token does not fit the type of the others.
    """
    kind, multiple, eod = ITEM_TYPES[source.type_code], padding.multiple_of, padding.eod
    if eod > np.iinfo(kind).max:
        raise ConfigError(f"--eod {eod}: {source.prefix} has tokens of type {kind}")
    lengths = np.array(source.lengths)
    longest = int(lengths.max(initial=0))
    if -(-longest // multiple) * multiple > np.iinfo(np.int32).max:
        raise ConfigError(f"{source.prefix}: a sequence of {longest} tokens cannot become longer")
    lengths += -lengths % np.int32(multiple)
    return PaddedSource(
        prefix=source.prefix,
        type_code=source.type_code,
        lengths=lengths,
        bounds=source.bounds,
        modes=source.modes,
        nbytes=int(lengths.sum(dtype=np.int64)) * kind.itemsize,
        idx=source.idx,
        has_loss=source.has_loss,
        unpadded=source,
        multiple_of=multiple,
        eod=eod,
    )


def eod_of(given: int | None, tokenizer: TokenizerFacts | None, prefix: str) -> int:
    """Return the token that sequences are filled up with: a given one, or the receipt's.

    Raises
    ------
    ConfigError
        If there is none.
    """
    known = given if given is not None or tokenizer is None else tokenizer.eod
    if known is None:
        raise ConfigError(
            f"{prefix}: no receipt says which token ends a document; give it as --eod TOKEN"
        )
    return known


def fill_up(values: NDArray[Any], lengths: NDArray[Any], padding: Padding) -> NDArray[Any]:
    """Return the tokens of sequences with their padding.

    Parameters
    ----------
    values : ndarray, shape (tokens,)
        Tokens of sequences, one after another.
    lengths : ndarray of int, shape (sequences,)
        Tokens of each.
    padding : Padding
        Multiple, and token of the padding.
    """
    sizes = np.asarray(lengths, np.int64)
    rooms = sizes + -sizes % padding.multiple_of
    eod = np.array(padding.eod).astype(values.dtype)
    return _spread(values, sizes, np.cumsum(rooms) - rooms, int(rooms.sum()), eod)


def padded_pieces(
    source: PaddedSource, low: int, high: int, room: NDArray[np.uint8]
) -> Iterator[NDArray[np.uint8]]:
    """Yield bytes [low, high) of a padded corpus; arguments and errors as of `token_pieces`.

    The sequences are read once, from first to last; a long one comes in several pieces.
    """
    kind = ITEM_TYPES[source.type_code]
    begin, end = low // kind.itemsize, high // kind.itemsize
    stream: _Stream | None = None
    for run in _runs(source, begin, end, max(len(room) // kind.itemsize, 1)):
        count = int(run.counts.sum())
        if count and stream is None:
            first = run.true_begin * kind.itemsize
            pieces = token_pieces(source.unpadded, first, source.unpadded.nbytes, room)
            stream = _Stream(pieces)
        tokens = (
            np.empty(0, kind) if stream is None else stream.take(count * kind.itemsize).view(kind)
        )
        yield _spread(tokens, run.counts, run.places, run.size, source.eod).view(np.uint8)


def padded_losses(
    source: PaddedSource, pieces: Iterator[NDArray[np.uint8]], first: int, last: int
) -> Iterator[NDArray[np.uint8]]:
    """Yield the loss mask of sequences of a padded corpus, whose padding has no loss.

    Parameters
    ----------
    source : PaddedSource
        The corpus.
    pieces : iterator of ndarray of uint8
        The mask of the same sequences without padding.
    first, last : int
        Range of sequences.
    """
    begin = int(source.lengths[:first].sum(dtype=np.int64))
    end = begin + int(source.lengths[first:last].sum(dtype=np.int64))
    stream = _Stream(pieces)
    for run in _runs(source, begin, end, MASK_BYTES):
        values = stream.take(int(run.counts.sum()))
        yield _spread(values, run.counts, run.places, run.size, 0)


def _spread(
    values: NDArray[Any],
    counts: NDArray[np.int64],
    places: NDArray[np.int64],
    size: int,
    padding: Any,
) -> NDArray[Any]:
    """Return values of sequences, each sequence at its place, with padding between them."""
    found = np.full(size, padding, values.dtype)
    before = np.cumsum(counts) - counts
    found[np.repeat(places - before, counts) + np.arange(len(values))] = values
    return found


class _Run(NamedTuple):
    """Successive tokens of a padded corpus."""

    size: int  # tokens, padding included
    true_begin: int  # its first token in the corpus without padding
    # of each sequence: tokens that are in the run, and the place of the first
    counts: NDArray[np.int64]
    places: NDArray[np.int64]


def _runs(source: PaddedSource, begin: int, end: int, most: int) -> Iterator[_Run]:
    """Yield runs of at most so many tokens that cover tokens [begin, end)."""
    before = true_before = 0  # tokens of the sequences before a block, with and without padding
    for first in range(0, len(source.lengths), BLOCK_SEQUENCES):
        some = slice(first, first + BLOCK_SEQUENCES)
        rooms = source.lengths[some].astype(np.int64)
        lengths = np.asarray(source.unpadded.lengths[some], np.int64)
        ends, true_ends = before + np.cumsum(rooms), true_before + np.cumsum(lengths)
        starts, true_starts = ends - rooms, true_ends - lengths
        for at in range(max(before, begin), min(int(ends[-1]), end), most):
            stop = min(at + most, int(ends[-1]), end)
            own = slice(
                int(np.searchsorted(ends, at, "right")), int(np.searchsorted(starts, stop, "left"))
            )
            lows = np.clip(at - starts[own], 0, lengths[own])
            counts = np.clip(stop - starts[own], 0, lengths[own]) - lows
            true_begin = int(true_starts[own][0] + lows[0])
            yield _Run(stop - at, true_begin, counts, starts[own] + lows - at)
        before, true_before = int(ends[-1]), int(true_ends[-1])
        if before >= end:
            return


class _Stream:
    """Bytes that come in pieces, taken in other pieces."""

    def __init__(self, pieces: Iterator[NDArray[np.uint8]]) -> None:
        self._pieces = pieces
        self._left = np.empty(0, np.uint8)

    def take(self, size: int) -> NDArray[np.uint8]:
        """Return the next bytes."""
        found, taken = np.empty(size, np.uint8), 0
        while taken < size:
            if not len(self._left):
                self._left = next(self._pieces)
            own = self._left[: size - taken]
            found[taken : taken + len(own)] = own
            self._left = self._left[len(own) :]
            taken += len(own)
        return found
