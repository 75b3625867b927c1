"""Sizes in bytes and counts of tokens, as people write and read them."""

from __future__ import annotations

import contextlib
import operator
from typing import Any, TypeVar

from distcache.errors import ConfigError

Value = TypeVar("Value")


def parse_size(text: str, least: int = 0) -> int:
    """Parse a number of bytes with an optional suffix K, M, G or T, in powers of 1024.

    Raises
    ------
    ConfigError
        If it is not one, or less than `least`.
    """
    bare = text.strip().upper().removesuffix("B").removesuffix("I")
    power = "KMGT".find(bare[-1:]) + 1 if bare[-1:] else 0
    try:
        size = int(float(bare[:-1] if power else bare) * 1024**power)
    except (ValueError, OverflowError):
        size = -1
    if size < least:
        raise ConfigError(f"{text!r} is not a size in bytes, such as 8G")
    return size


def parse_positive_size(text: str) -> int:
    """Parse a number of bytes that is at least 1, as `parse_size` does."""
    return parse_size(text, least=1)


def parse_tokens(text: str) -> int:
    """Parse a number of tokens: 1e9, 300B, 1.5T or 20_000_000, in powers of 1000.

    Raises
    ------
    ConfigError
        If it is not a number, or less than 1.
    """
    bare = text.strip().upper()
    power = "KMBT".find(bare[-1:]) + 1 if bare[-1:] else 0
    try:
        count = int(float(bare[:-1] if power else bare) * 1000**power)
    except (ValueError, OverflowError):
        count = 0
    if not 1 <= count < 1 << 62:
        raise ConfigError(f"{text!r} is not a number of tokens, such as 300B")
    return count


def size_text(nbytes: int) -> str:
    """Return a number of bytes for people, in powers of 1024."""
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"


def plain_number(value: Value) -> Value:
    """Return an integer of NumPy or torch as Python's own; anything else unchanged."""
    plain: Any = value
    if not isinstance(value, bool):
        with contextlib.suppress(TypeError):
            plain = operator.index(plain)
    found: Value = plain
    return found


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a number and its noun: 1 rank, 2 ranks; 1 corpus, 2 corpora."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"
