"""Write a small corpus: the `.bin` first, then the `.idx`, each under its name when it is whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import DTypeLike, NDArray

from distcache.corpus.idx import bin_path
from distcache.corpus.idx_writer import write_idx
from distcache.corpus.token_types import code_of
from distcache.errors import CorpusError
from distcache.files import write_whole

__all__ = ["write_corpus"]


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
    wanted = np.dtype(dtype)
    code_of(wanted)
    lengths: list[int] = []
    with write_whole(bin_path(prefix)) as stream:
        for tokens in documents:
            if len(tokens) > np.iinfo(np.int32).max:
                raise CorpusError(f"{prefix}: document {len(lengths)} has 2**31 tokens or more")
            stream.write(np.asarray(tokens, wanted).tobytes())
            lengths.append(len(tokens))
    write_idx(prefix, np.array(lengths, "<i4"), wanted)
