"""Write a corpus: the `.bin` first, the `.idx` last, each under its name only when it is whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import DTypeLike, NDArray

from distcache.corpus.idx import HEADER, ITEM_TYPES, MAGIC, bin_path, idx_path
from distcache.errors import CorpusError
from distcache.files import write_whole

__all__ = ["idx_bytes", "write_corpus"]


def idx_bytes(
    lengths: NDArray[np.int32], bounds: Sequence[int] | NDArray[np.int64], dtype: DTypeLike
) -> list[bytes]:
    """Compose an `.idx` file.

    Parameters
    ----------
    lengths : ndarray of int32, shape (sequences,)
        Tokens per sequence.
    bounds : sequence of int, length documents + 1
        Sequence numbers at which documents start, then the number of sequences.
    dtype : dtype
        The token type.

    Returns
    -------
    list of bytes
        The header and the arrays, in the order of the file.

    Raises
    ------
    CorpusError
        If an `.idx` cannot name the token type.
    """
    wanted = np.dtype(dtype)
    code = next((code for code, known in ITEM_TYPES.items() if known == wanted), None)
    if code is None:
        raise CorpusError(f"token type {wanted} has no code in an .idx file")
    ends = np.cumsum(lengths, dtype=np.int64) * wanted.itemsize
    offsets = np.concatenate([np.zeros(1, np.int64), ends])[: len(lengths)]
    return [
        HEADER.pack(MAGIC, 1, code, len(lengths), len(bounds)),
        lengths.astype("<i4").tobytes(),
        offsets.astype("<i8").tobytes(),
        np.asarray(bounds, "<i8").tobytes(),
    ]


def write_corpus(
    prefix: str, documents: Iterable[Sequence[int] | NDArray[np.generic]], dtype: DTypeLike
) -> None:
    """Write documents of one sequence each as a corpus.

    Parameters
    ----------
    prefix : str
        The path without suffix; files that are there are replaced.
    documents : iterable of sequences of int
        The tokens of each document.
    dtype : dtype
        The token type of the `.bin`.

    Raises
    ------
    CorpusError
        If an `.idx` cannot name the token type, or a document has 2**31 tokens or more.
    """
    lengths: list[int] = []
    with write_whole(idx_path(prefix)) as idx_stream:
        # Both get their names in the end, the `.bin` first: a corpus without an `.idx` is none.
        with write_whole(bin_path(prefix)) as bin_stream:
            for tokens in documents:
                if len(tokens) > np.iinfo(np.int32).max:
                    raise CorpusError(f"{prefix}: document {len(lengths)} has 2**31 tokens or more")
                bin_stream.write(np.asarray(tokens, dtype).tobytes())
                lengths.append(len(tokens))
        bounds = range(len(lengths) + 1)
        idx_stream.writelines(idx_bytes(np.array(lengths, "<i4"), bounds, dtype))
