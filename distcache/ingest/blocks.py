"""Blocks of memory that are used again: memory that a process has never touched is slow."""

from __future__ import annotations

import threading
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["BLOCK", "Blocks"]

BLOCK: Final = 4 << 20  # bytes


class Blocks:
    """A pool of blocks of `BLOCK` bytes, shared by the threads of a rank."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[NDArray[np.uint8]] = []

    def take(self) -> NDArray[np.uint8]:
        """Return a block, whose content is whatever it was."""
        with self._lock:
            if self._free:
                return self._free.pop()
        return np.empty(BLOCK, np.uint8)

    def give(self, blocks: list[NDArray[Any]]) -> None:
        """Take blocks back."""
        with self._lock:
            self._free += blocks
