"""Give a corpus its loss mask: from bytes, or from the labels of another corpus."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from distcache.corpus.idx import ITEM_TYPES, Idx, bin_path, open_idx
from distcache.corpus.loss import loss_path, read_loss
from distcache.corpus.mds.shard_table import has_table
from distcache.corpus.receipt import LossReceipt, find_receipt, write_receipt
from distcache.errors import ConfigError, CorpusError, NotReady
from distcache.storage.files import no_space_as_error, recreate, sync_directory, temporary_name

CHUNK_TOKENS: Final = 4 << 20
WITHOUT_LOSS: Final = -100  # label of a token that has no loss


class Masked(msgspec.Struct, frozen=True):
    """The loss mask that a corpus was given."""

    path: str
    tokens: int  # tokens of the corpus
    tokens_with_loss: int
    silent_sequences: int  # sequences none of whose tokens has a loss


def write_mask(prefix: str, *, values: Path | None = None, labels: str | None = None) -> Masked:
    """Write the loss mask of a corpus, and name it in the receipt, if there is one.

    Parameters
    ----------
    prefix : str
        Prefix of the corpus.
    values : Path or None
        File with a byte for each token of the `.bin`, 1 or 0: datatrove's ``.loss``, or OLMo-core's
        ``labels_mask``.
    labels : str or None
        Prefix of a corpus with the same sequences, whose tokens are -100 where there is no loss:
        gpt-neox's ``label_document``.

    Raises
    ------
    ConfigError
        If the corpus has a mask, or a corpus is a view or consists of shards.
    NotReady
        If a corpus is missing.
    CorpusError
        If the bytes or labels are not those of the corpus.
    """
    path = Path(loss_path(prefix))
    if os.path.lexists(path):
        raise ConfigError(f"{path}: exists; remove it first, and make its views and caches again")
    size = _size_of_tokens(prefix)
    idx = open_idx(prefix)
    tokens = size // idx.item_size
    pieces = _of_bytes(values, tokens) if values is not None else _of_labels(idx, prefix, labels)
    temporary = temporary_name(path)
    try:
        with no_space_as_error(path), recreate(temporary) as stream:
            for piece in pieces:
                stream.write(piece.tobytes())
            stream.flush()
            os.fsync(stream.fileno())
        facts = read_loss(prefix, idx, size, str(temporary))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)
    if (receipt := find_receipt(prefix)) is not None:
        loss = LossReceipt(facts.digest, facts.tokens)
        write_receipt(prefix, msgspec.structs.replace(receipt, loss=loss))
    own = int(idx.lengths.sum(dtype=np.int64))
    return Masked(str(path), own, facts.tokens, facts.silent)


def _size_of_tokens(prefix: str) -> int:
    """Return the bytes of the `.bin` of a corpus, which is a file of its own.

    Raises
    ------
    ConfigError
        If the corpus is a view, or consists of shards.
    NotReady
        If there is no `.bin`.
    """
    tokens = bin_path(prefix)
    if os.path.islink(tokens) or has_table(prefix):
        raise ConfigError(
            f"{prefix}: is a view, or consists of shards; give the corpus that has the tokens"
        )
    try:
        return os.stat(tokens).st_size
    except FileNotFoundError as error:
        raise NotReady(f"{tokens}: no such file") from error


def _of_bytes(values: Path, tokens: int) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of a file, which has one for each token."""
    try:
        size = values.stat().st_size
    except OSError as error:
        raise ConfigError(f"--bytes {values}: cannot be read: {error.strerror}") from error
    if size != tokens:
        raise CorpusError(f"{values}: has {size} bytes, expected one for each of {tokens} tokens")
    with open(values, "rb") as stream:
        while piece := stream.read(CHUNK_TOKENS):
            yield np.frombuffer(piece, np.uint8)


def _of_labels(idx: Idx, prefix: str, labels: str | None) -> Iterator[NDArray[np.uint8]]:
    """Yield the mask that labels say; those that are not -100 must be the tokens."""
    assert labels is not None, "bytes or labels are given"
    _size_of_tokens(labels)
    other = open_idx(labels)
    for one, name in ((idx, prefix), (other, labels)):
        ends = np.cumsum(one.lengths, dtype=np.int64) * one.item_size
        if len(ends) and not np.array_equal(one.offsets[1:], ends[:-1]):
            raise ConfigError(f"{name}: has its tokens in another order than its sequences")
    if not np.array_equal(other.lengths, idx.lengths):
        raise CorpusError(f"{labels}: has other sequences than {prefix}")
    types = [ITEM_TYPES[one.type_code] for one in (idx, other)]
    with open(bin_path(prefix), "rb") as own, open(bin_path(labels), "rb") as theirs:
        at = 0
        while True:
            pieces = zip((own, theirs), types, strict=True)
            tokens, wanted = (
                np.frombuffer(stream.read(CHUNK_TOKENS * kind.itemsize), kind)
                for stream, kind in pieces
            )
            if len(tokens) != len(wanted):
                raise CorpusError(f"{labels}: has another number of tokens than {prefix}")
            if not len(tokens):
                return
            has_loss = wanted.astype(np.int64) != WITHOUT_LOSS
            wrong = has_loss & (wanted.astype(np.int64) != tokens.astype(np.int64))
            if wrong.any():
                place = at + int(np.argmax(wrong))
                raise CorpusError(
                    f"{labels}: label {place} is {wanted[place - at]}, and the token of {prefix} "
                    f"is {tokens[place - at]}; expected -100 or the token"
                )
            yield has_loss.astype(np.uint8)
            at += len(tokens)
