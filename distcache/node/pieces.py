"""How units are cut into pieces, and which agent reads each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from distcache.node.wanted import Unit

__all__ = ["Piece", "cut", "reader_of"]

PIECE: Final = 8 << 20  # bytes


class Piece(msgspec.Struct, frozen=True):
    """Bytes [begin, end) of a unit's file."""

    unit: int
    begin: int
    end: int


def cut(units: Sequence[Unit], numbers: Sequence[int], size: int = PIECE) -> list[Piece]:
    """Cut units into pieces of at most so many bytes, in order."""
    return [
        Piece(number, begin, min(begin + size, units[number].end))
        for number in numbers
        for begin in range(units[number].begin, units[number].end, size)
    ]


def reader_of(piece: int, agents: int) -> int:
    """Return the agent that reads a piece."""
    return piece % agents
