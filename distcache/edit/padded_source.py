"""A corpus whose sequences are filled up to a multiple of tokens, for context parallelism.

Megatron's reader puts documents one after the other. So the padding is in the `.bin`, behind each
sequence, and is the end-of-document token: ``--eod-mask-loss`` takes the loss from it. Another
token would have a loss where the next document begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from distcache.corpus.corpus import CopySource
from distcache.corpus.idx import ITEM_TYPES
from distcache.corpus.receipt import TokenizerFacts
from distcache.corpus.view_bytes import token_pieces
from distcache.errors import ConfigError
from distcache.storage.threads import decodable

BLOCK_SEQUENCES: Final = 1 << 18  # at a time
MAX_MULTIPLE: Final = 1 << 20


@decodable
class Padding(msgspec.Struct, frozen=True):
    """How sequences are filled up: options of a receipt."""

    multiple_of: Annotated[int, msgspec.Meta(ge=1, le=MAX_MULTIPLE)] = 1  # tokens
    eod: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0  # token behind them


@dataclass(frozen=True, eq=False, kw_only=True)
class PaddedSource(CopySource):
    """A corpus with its padding: lengths and bytes are those of the result."""

    unpadded: CopySource
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


def padded_pieces(
    source: PaddedSource, low: int, high: int, room: NDArray[np.uint8]
) -> Iterator[NDArray[np.uint8]]:
    """Yield bytes [low, high) of a padded corpus; arguments and errors as of `token_pieces`."""
    kind = ITEM_TYPES[source.type_code]
    begin, end, most = low // kind.itemsize, high // kind.itemsize, len(room) // kind.itemsize
    before = true_before = 0  # tokens of the sequences before a block, with and without padding
    for first in range(0, len(source.lengths), BLOCK_SEQUENCES):
        some = slice(first, first + BLOCK_SEQUENCES)
        rooms = source.lengths[some].astype(np.int64)
        lengths = np.asarray(source.unpadded.lengths[some], np.int64)
        starts = before + np.cumsum(rooms) - rooms
        true_starts = true_before + np.cumsum(lengths) - lengths
        before, true_before = before + int(rooms.sum()), true_before + int(lengths.sum())
        last = min(before, end)
        for at in range(max(int(starts[0]), begin), last, most):
            stop = min(at + most, last)
            own = np.flatnonzero((starts < stop) & (starts + rooms > at))
            lows = np.clip(at - starts[own], 0, lengths[own])
            counts = np.clip(stop - starts[own], 0, lengths[own]) - lows
            yield _filled(
                source, true_starts[own] + lows, counts, starts[own] + lows - at, stop - at
            )


def _filled(
    source: PaddedSource,
    begins: NDArray[np.int64],
    counts: NDArray[np.int64],
    places: NDArray[np.int64],
    size: int,
) -> NDArray[np.uint8]:
    """Return tokens of successive sequences at their places, and padding between them."""
    kind = ITEM_TYPES[source.type_code]
    found = np.full(size, source.eod, kind)
    count = int(counts.sum())
    if count:
        first = int(begins[counts > 0][0])
        tokens, taken = np.empty(count * kind.itemsize, np.uint8), 0
        room = np.empty(min(len(tokens), 16 << 20), np.uint8)
        low = first * kind.itemsize
        for piece in token_pieces(source.unpadded, low, low + len(tokens), room):
            tokens[taken : taken + len(piece)] = piece
            taken += len(piece)
        before = np.cumsum(counts) - counts
        found[np.repeat(places - before, counts) + np.arange(count)] = tokens.view(kind)
    return found.view(np.uint8)
