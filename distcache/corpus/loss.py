"""Loss masks of corpora: ``PREFIX.loss``, one byte for each token of the `.bin`.

The byte is 1 if there is a loss for predicting the token, and 0 if there is none: of a prompt, or
of what a tool has answered. It is beside the token that is predicted, as in the ``.loss`` files of
datatrove and the ``labels_mask`` of OLMo-core, whose bytes these are. A corpus without the file has
a loss everywhere. A view shares the mask of its corpus by a link, as it shares the `.bin`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from distcache.corpus.idx import Idx
from distcache.errors import CorpusError
from distcache.storage.files import FileVersion, closing_fd, open_regular, read_range, version_of
from distcache.storage.watchdog import tick

CHUNK_BYTES: Final = 16 << 20
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
    """Return the version of the loss mask of a corpus; None if there is none."""
    try:
        return version_of(os.stat(loss_path(prefix)))
    except OSError:
        return None


def read_loss(prefix: str, idx: Idx, bin_size: int) -> LossFacts:
    """Read the loss mask of a corpus, and compare it with its `.bin`.

    Parameters
    ----------
    prefix : str
        Prefix of the corpus.
    idx : Idx
        Sound index of it.
    bin_size : int
        Bytes of the `.bin`.

    Raises
    ------
    CorpusError
        If it cannot be read, has not a byte for each token or another value than 0 and 1, or no
        token has a loss.
    """
    path = loss_path(prefix)
    try:
        with closing_fd(open_regular(path)) as descriptor:
            version = version_of(os.fstat(descriptor))
            if version.size != bin_size // idx.item_size:
                raise CorpusError(
                    f"{path}: has {version.size} bytes, expected one for each token of the .bin, "
                    f"{bin_size // idx.item_size}"
                )
            digest, ones = _digest_values(path, descriptor, version.size)
            if not ones:
                raise CorpusError(
                    f"{path}: no token has a loss, so that nothing would be learned of it"
                )
            tokens = silent = 0
            for first, values in _blocks(descriptor, idx):
                own, none = _count(idx, first, values)
                tokens, silent = tokens + own, silent + none
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read: {error.strerror}") from error
    except EOFError as error:
        raise CorpusError(f"{path}: was truncated while it was read") from error
    return LossFacts(digest, tokens, silent, version)


def _digest_values(path: str, descriptor: int, size: int) -> tuple[str, int]:
    """Return the digest of a mask, and how many of its bytes are 1."""
    digest, ones = xxhash.xxh3_128(), 0
    for begin in range(0, size, CHUNK_BYTES):
        content = read_range(descriptor, begin, min(begin + CHUNK_BYTES, size))
        values = np.frombuffer(content, np.uint8)
        if values.max(initial=0) > 1:
            place = int(np.argmax(values > 1))
            raise CorpusError(
                f"{path}: byte {begin + place} is {values[place]}, expected 0 or 1 for each token"
            )
        digest.update(content)
        ones += int(values.sum(dtype=np.int64))
        tick()
    return digest.hexdigest(), ones


def _blocks(descriptor: int, idx: Idx) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Yield the first sequence of each block, and the bytes of its sequences one after another."""
    for first in range(0, len(idx.lengths), BLOCK_SEQUENCES):
        yield first, loss_of(descriptor, idx, first, first + BLOCK_SEQUENCES)


def loss_of(descriptor: int, idx: Idx, first: int, last: int) -> NDArray[np.uint8]:
    """Return the bytes of a mask that belong to sequences, one sequence after another.

    Parameters
    ----------
    descriptor : int
        Descriptor of the mask.
    idx : Idx
        Index of the corpus.
    first, last : int
        Range of sequences; it may reach beyond the last.

    Raises
    ------
    EOFError
        If the file ends before.
    OSError
        If it cannot be read.
    """
    lengths = np.asarray(idx.lengths[first:last], np.int64)
    begins = np.asarray(idx.offsets[first:last], np.int64) // idx.item_size
    full = np.flatnonzero(lengths)
    begins, ends = begins[full], (begins + lengths)[full]
    cuts = np.flatnonzero(begins[1:] != ends[:-1]) + 1  # runs that are read at once
    found = np.empty(int(lengths.sum()), np.uint8)
    at = 0
    for run in np.split(np.arange(len(full)), cuts):
        for begin in (
            range(int(begins[run[0]]), int(ends[run[-1]]), CHUNK_BYTES) if len(run) else ()
        ):
            content = read_range(descriptor, begin, min(begin + CHUNK_BYTES, int(ends[run[-1]])))
            found[at : at + len(content)] = np.frombuffer(content, np.uint8)
            at += len(content)
    return found


def _count(idx: Idx, first: int, values: NDArray[np.uint8]) -> tuple[int, int]:
    """Return the tokens with a loss of a block, and the sequences with tokens that have none."""
    lengths = np.asarray(idx.lengths[first : first + BLOCK_SEQUENCES], np.int64)
    sums = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
    ends = np.cumsum(lengths)
    own = sums[ends] - sums[ends - lengths]
    return int(values.sum(dtype=np.int64)), int(np.count_nonzero((own == 0) & (lengths > 0)))
