"""Sizes in bytes, as people write them."""

from __future__ import annotations

from distcache.errors import ConfigError

__all__ = ["parse_size"]


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
