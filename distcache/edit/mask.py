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
from distcache.errors import ConfigError, CorpusError
from distcache.storage.files import atomic_write, no_space_as_error

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
        If the corpus has a mask, is a view or has no `.bin`.
    CorpusError
        If the bytes or labels are not those of the corpus.
    """
    path = Path(loss_path(prefix))
    if os.path.lexists(path):
        raise ConfigError(f"{path}: exists; remove it first, and build its caches again")
    if os.path.islink(bin_path(prefix)) or has_table(prefix):
        raise ConfigError(
            f"{prefix}: is a view, or consists of shards; give the mask to the corpus that has the "
            "tokens"
        )
    idx = open_idx(prefix)
    size = os.stat(bin_path(prefix)).st_size
    pieces = _of_bytes(values, size // idx.item_size) if values else _of_labels(idx, prefix, labels)
    with no_space_as_error(path), atomic_write(path) as stream:
        for piece in pieces:
            stream.write(piece.tobytes())
    try:
        facts = read_loss(prefix, idx, size)
    except CorpusError:
        path.unlink()
        raise
    if (receipt := find_receipt(prefix)) is not None:
        loss = LossReceipt(facts.digest, facts.tokens)
        write_receipt(prefix, msgspec.structs.replace(receipt, loss=loss))
    tokens = int(idx.lengths.sum(dtype=np.int64))
    return Masked(str(path), tokens, facts.tokens, facts.silent)


def _of_bytes(values: Path, tokens: int) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of a file, which has one for each token."""
    size = values.stat().st_size
    if size != tokens:
        raise CorpusError(f"{values}: has {size} bytes, expected one for each of {tokens} tokens")
    with open(values, "rb") as stream:
        while piece := stream.read(CHUNK_TOKENS):
            yield np.frombuffer(piece, np.uint8)


def _of_labels(idx: Idx, prefix: str, labels: str | None) -> Iterator[NDArray[np.uint8]]:
    """Yield the mask that labels say; those that are not -100 must be the tokens."""
    assert labels is not None, "bytes or labels are given"
    other = open_idx(labels)
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
