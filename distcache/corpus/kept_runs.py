"""Which of consecutive numbers are kept, as runs: the k-th kept number, and back.

The code is pairs of run lengths, kept and then dropped, each as a LEB128 number of 64 bits at most;
the last kept run is not written. So nothing is written where everything is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from distcache.errors import CorpusError

MAX_ROWS: Final = 1 << 62


def encode_numbers(values: NDArray[np.int64]) -> bytes:
    """Return numbers that are not negative as LEB128, one after the other."""
    values = np.asarray(values, np.uint64)
    groups = max((int(values.max(initial=0)).bit_length() + 6) // 7, 1)
    shifts = np.arange(groups, dtype=np.uint64) * np.uint64(7)
    digits = (values[:, None] >> shifts).astype(np.uint8) & 0x7F
    more = (values[:, None] >> shifts) >> np.uint64(7) > 0
    wanted = np.concatenate([np.ones((len(values), 1), bool), more[:, :-1]], axis=1)
    return bytes((digits | (more.astype(np.uint8) << 7))[wanted])


def decode_numbers(data: bytes) -> NDArray[np.int64]:
    """Return the numbers of a code.

    Raises
    ------
    CorpusError
        If it is cut short, or a number has more than 63 bits.
    """
    raw = np.frombuffer(data, np.uint8)
    if not len(raw):
        return np.empty(0, np.int64)
    ends = np.flatnonzero(raw < 0x80)
    starts = np.concatenate([[0], ends[:-1] + 1])
    if not len(ends) or ends[-1] != len(raw) - 1 or int((ends - starts).max()) > 8:
        raise CorpusError("a receipt has run lengths that are no numbers")
    place = np.arange(len(raw)) - np.repeat(starts, ends - starts + 1)
    digits = (raw & 0x7F).astype(np.int64) << (7 * place)
    found: NDArray[np.int64] = np.add.reduceat(digits, starts)
    return found


class KeptRuns:
    """Kept numbers, by their runs.

    Parameters
    ----------
    data : bytes
        The code.

    Raises
    ------
    CorpusError
        If the bytes are not a valid code.
    """

    def __init__(self, data: bytes) -> None:
        runs = decode_numbers(data)
        if len(runs) % 2:
            raise CorpusError("a receipt has a run of kept numbers without one of dropped numbers")
        if runs.sum(dtype=np.float64) >= MAX_ROWS:
            raise CorpusError("a receipt has runs of more numbers than there can be")
        # Kept numbers before each run of dropped ones, and dropped numbers up to its end.
        self._kept: NDArray[np.int64] = np.cumsum(runs[::2])
        self._dropped: NDArray[np.int64] = np.concatenate([[0], np.cumsum(runs[1::2])])

    def numbers(self, kept: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the k-th kept numbers."""
        kept = np.asarray(kept, np.int64)
        dropped: NDArray[np.int64] = self._dropped[np.searchsorted(self._kept, kept, "right")]
        return kept + dropped

    def find(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which kept number each is; -1 if it is dropped."""
        numbers = np.asarray(numbers, np.int64)
        begins = np.concatenate([[0], self._kept]) + self._dropped  # of each run of kept numbers
        run = np.searchsorted(begins, numbers, "right") - 1
        # Runs of no kept numbers begin where the next does: the last of them is found.
        kept = numbers - self._dropped[run]
        ends = np.concatenate([self._kept, [np.iinfo(np.int64).max]])
        return np.where(kept < ends[run], kept, -1)


class RunEncoder:
    """Encodes ascending numbers that arrive piece by piece.

    Parameters
    ----------
    following : int
        The number after the last that was kept.
    run : int
        Kept numbers since the last that was dropped.
    """

    def __init__(self, following: int = 0, run: int = 0) -> None:
        self.following = following
        self.run = run

    def add(self, numbers: NDArray[np.int64]) -> bytes:
        """Keep more numbers; return what they add to the code."""
        if not len(numbers):
            return b""
        before = np.concatenate([[self.following], numbers[:-1] + 1])
        jumps = np.flatnonzero(numbers != before)
        starts = np.concatenate([[0], jumps])
        kept = np.diff(starts)
        if len(kept):
            kept[0] += self.run
        self.run = len(numbers) - int(starts[-1]) + (self.run if not len(jumps) else 0)
        self.following = int(numbers[-1]) + 1
        pairs = np.stack([kept, (numbers - before)[jumps]], axis=1)
        return encode_numbers(pairs.ravel()) if len(jumps) else b""


def encode_kept(numbers: Iterator[NDArray[np.int64]]) -> bytes:
    """Return the code of ascending numbers, which come in pieces."""
    encoder = RunEncoder()
    return b"".join(encoder.add(piece) for piece in numbers)
