"""Token types: which an `.idx` can name, and which is the smallest for a vocabulary."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike

from distcache.corpus.idx import ITEM_TYPES
from distcache.errors import ConfigError, CorpusError

__all__ = ["NAMES", "code_of", "limit_of", "named_type", "smallest_type"]

NAMES: Final = {"u8": "u1", "u16": "<u2", "i32": "<i4", "i64": "<i8"}
MEGATRON_NARROW: Final = 65_500  # below it, Megatron's preprocessing writes 16 bits, else 32


def code_of(dtype: DTypeLike) -> int:
    """Return the code that the header of an `.idx` has for a token type.

    Raises
    ------
    CorpusError
        If there is none.
    """
    wanted = np.dtype(dtype)
    code = next((code for code, known in ITEM_TYPES.items() if known == wanted), None)
    if code is None:
        raise CorpusError(f"token type {wanted} has no code in an .idx file")
    return code


def smallest_type(vocabulary: int) -> np.dtype[Any]:
    """Return the smallest token type that holds the ids below a vocabulary's size."""
    if vocabulary <= 1 << 8:
        return np.dtype("u1")
    if vocabulary <= 1 << 16:
        return np.dtype("<u2")
    return np.dtype("<i4") if vocabulary <= 1 << 31 else np.dtype("<i8")


def named_type(name: str, vocabulary: int | None) -> np.dtype[Any]:
    """Return the token type that an option asks for.

    Parameters
    ----------
    name : str
        A key of `NAMES`; ``auto`` for the smallest, and ``megatron`` for the one that Megatron's
        preprocessing takes (``DType.optimal_dtype``).
    vocabulary : int or None
        Size of the vocabulary; None if it is not known, which 32 bits are taken for.

    Raises
    ------
    ConfigError
        If there is no such type, or it does not hold the vocabulary.
    """
    if name == "auto":
        return np.dtype("<i4") if vocabulary is None else smallest_type(vocabulary)
    if name == "megatron":
        narrow = vocabulary is not None and vocabulary < MEGATRON_NARROW
        found = np.dtype("<u2" if narrow else "<i4")
    elif name in NAMES:
        found = np.dtype(NAMES[name])
    else:
        raise ConfigError(f"--token-type {name}: expected auto, megatron, {', '.join(NAMES)}")
    if vocabulary is not None and vocabulary > limit_of(found):
        raise ConfigError(f"--token-type {name}: does not hold a vocabulary of {vocabulary} tokens")
    return found


def limit_of(dtype: np.dtype[Any], vocabulary: int | None = None) -> int:
    """Return the number that token ids must be below: that of the type, or of the vocabulary."""
    most = int(np.iinfo(dtype).max) + 1
    return most if vocabulary is None else min(most, vocabulary)
