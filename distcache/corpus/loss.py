"""Loss masks of corpora: ``PREFIX.loss``, one byte for each token of the `.bin`.

The byte is 1 if there is a loss for predicting the token, and 0 if there is none: of a prompt, or
of what a tool has answered. It is beside the token that is predicted, as in the ``.loss`` files of
datatrove and the ``labels_mask`` of OLMo-core, whose bytes these are. A corpus without the file has
a loss everywhere. A view shares the mask of its corpus by a link, as it shares the `.bin`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from distcache.corpus.idx import Idx
from distcache.errors import AccessDenied, CorpusError
from distcache.storage.files import (
    FileVersion,
    closing_fd,
    no_space_as_error,
    open_regular,
    read_range,
    version_of,
)
from distcache.storage.listing import listed_version
from distcache.storage.place import PIECE_BYTES, open_place, pieces_of, require_answer
from distcache.storage.url import is_url
from distcache.storage.watchdog import tick

CHUNK_BYTES: Final = 4 << 20
BLOCK_SEQUENCES: Final = 1 << 16  # whose bytes are read together


class LossFacts(msgspec.Struct, frozen=True):
    """The facts of a loss mask."""

    digest: str  # XXH3-128 of the file, in hexadecimal
    tokens: int  # tokens of the corpus that have a loss
    silent: int  # sequences with tokens, none of which has a loss
    version: FileVersion  # version of the file, from before it was read


def loss_path(prefix: str) -> str:
    """Return the path of the loss mask of a corpus."""
    return prefix + ".loss"


def loss_version(prefix: str) -> FileVersion | None:
    """Return the version of the loss mask of a corpus; None if there is none.

    Without the right to list, a store may refuse a mask that is missing; a refused mask counts as
    missing.

    Raises
    ------
    StorageError
        If the store does not answer.
    """
    try:
        return listed_version(loss_path(prefix))
    except AccessDenied:
        return None
    except OSError as error:
        require_answer(error)
        return None


def read_loss(prefix: str, idx: Idx, bin_size: int, source: str | None = None) -> LossFacts:
    """Read the loss mask of a corpus, and compare it with its `.bin`.

    Parameters
    ----------
    prefix : str
        Prefix of the corpus.
    idx : Idx
        Sound index of it.
    bin_size : int
        Bytes of the `.bin`.
    source : str or None
        Path of the mask, if it does not have its name yet.

    Raises
    ------
    CorpusError
        If it cannot be read, has not a byte for each token or another value than 0 and 1, or no
        token of the corpus has a loss.
    NoSpace
        If it is an object, and there is no space for a temporary copy.
    """
    path = loss_path(prefix)
    with reading(path), _opened(source or path) as (descriptor, version):
        if version.size != bin_size // idx.item_size:
            raise CorpusError(
                f"{path}: has {version.size} bytes, expected one for each token of the .bin, "
                f"{bin_size // idx.item_size}"
            )
        digest = _digest_values(path, descriptor, version.size)
        tokens, silent = _count(descriptor, idx)
    if not tokens:
        raise CorpusError(
            f"{path}: no token of {prefix} has a loss, so that nothing would be learned of it"
        )
    return LossFacts(digest, tokens, silent, version)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tuple[int, FileVersion]]:
    """Open a mask, or a nameless copy of an object, and yield its descriptor and version."""
    if not is_url(path):
        with closing_fd(open_regular(path)) as descriptor:
            yield descriptor, version_of(os.fstat(descriptor))
        return
    version = listed_version(path)
    with tempfile.TemporaryFile() as copy:
        with open_place(path, version) as place, no_space_as_error(tempfile.gettempdir()):
            for piece in pieces_of(place, 0, version.size, PIECE_BYTES):
                copy.write(piece.data)
                tick()
            copy.flush()
        yield copy.fileno(), version


@contextlib.contextmanager
def reading(path: str) -> Iterator[None]:
    """Turn an error of reading a mask into one that names it.

    Raises
    ------
    CorpusError
        If there is one.
    StorageError
        If it is of a store.
    """
    try:
        yield
    except OSError as error:
        require_answer(error)
        raise CorpusError(f"{path}: cannot be read: {error.strerror}") from error
    except EOFError as error:
        raise CorpusError(f"{path}: was truncated while it was read") from error


def _digest_values(path: str, descriptor: int, size: int) -> str:
    """Return the digest of a mask whose bytes are 0 or 1."""
    digest = xxhash.xxh3_128()
    for begin in range(0, size, CHUNK_BYTES):
        content = read_range(descriptor, begin, min(begin + CHUNK_BYTES, size))
        values = np.frombuffer(content, np.uint8)
        if values.max(initial=0) > 1:
            place = int(np.argmax(values > 1))
            raise CorpusError(
                f"{path}: byte {begin + place} is {values[place]}, expected 0 or 1 for each token"
            )
        digest.update(content)
        tick()
    return digest.hexdigest()


def loss_pieces(descriptor: int, idx: Idx, first: int, last: int) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of a mask that belong to sequences, one sequence after another.

    Parameters
    ----------
    descriptor : int
        Descriptor of the mask.
    idx : Idx
        Index of the corpus.
    first, last : int
        Range of sequences.

    Raises
    ------
    EOFError
        If the file ends before.
    OSError
        If it cannot be read.
    """
    for begin in range(first, last, BLOCK_SEQUENCES):
        some = slice(begin, min(begin + BLOCK_SEQUENCES, last))
        lengths = np.asarray(idx.lengths[some], np.int64)
        begins = np.asarray(idx.offsets[some], np.int64) // idx.item_size
        full = np.flatnonzero(lengths)
        begins, ends = begins[full], (begins + lengths)[full]
        cuts = np.flatnonzero(begins[1:] != ends[:-1]) + 1  # between runs that follow one another
        bounds = [0, *cuts.tolist(), len(full)] if len(full) else [0]
        for low, high in itertools.pairwise(bounds):
            at, end = int(begins[low]), int(ends[high - 1])
            while at < end:
                stop = min(at + CHUNK_BYTES, end)
                yield np.frombuffer(read_range(descriptor, at, stop), np.uint8)
                at = stop


def _count(descriptor: int, idx: Idx) -> tuple[int, int]:
    """Return the tokens with a loss, and the sequences with tokens that have none."""
    tokens = silent = 0
    for begin in range(0, len(idx.lengths), BLOCK_SEQUENCES):
        some = slice(begin, begin + BLOCK_SEQUENCES)
        lengths = np.asarray(idx.lengths[some], np.int64)
        lengths = lengths[lengths > 0]
        ends, sums, at = np.cumsum(lengths), np.zeros(len(lengths), np.int64), 0
        starts = ends - lengths
        last = min(begin + BLOCK_SEQUENCES, len(idx.lengths))
        for piece in loss_pieces(descriptor, idx, begin, last):
            low = int(np.searchsorted(ends, at, "right"))
            high = int(np.searchsorted(starts, at + len(piece), "left"))
            places = np.maximum(starts[low:high] - at, 0)
            sums[low:high] += np.add.reduceat(piece, places, dtype=np.uint32)
            at += len(piece)
        tokens, silent = tokens + int(sums.sum()), silent + int(np.count_nonzero(sums == 0))
    return tokens, silent
